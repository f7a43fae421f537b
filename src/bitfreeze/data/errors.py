"""What can go wrong with data, one class for each thing that a caller may want to do about it."""


class DataMissing(FileNotFoundError):
    """Files of a dataset are not in its folder: they can be got."""


class DataCorrupt(ValueError):
    """A file is there but is not what it should be: it can be replaced."""


class UnsafeArchive(DataCorrupt):
    """An archive holds a member that would be written outside its folder, or that is no plain file."""


class DownloadFailed(OSError):
    """No source delivered; ``tried`` says in words what each of them answered."""

    def __init__(self, sentence: str, tried: tuple[str, ...]) -> None:
        super().__init__("\n  ".join((sentence, *tried)))
        self.tried = tried


class PackageFailed(Exception):
    """A package client is not there, or did not deliver."""


class DataUnverified(UserWarning):
    """No digest is known for a file, so nobody can tell whether it is the right one."""
