"""The ways in which data can fail, a class for each that a caller may want to handle."""


class DataMissing(FileNotFoundError):
    """Files of a dataset are not in its folder."""


class DataCorrupt(ValueError):
    """A file is not what it should be."""


class DownloadFailed(OSError):
    """No source delivered. ``tried`` holds a sentence for each source."""

    def __init__(self, sentence: str, tried: tuple[str, ...]) -> None:
        super().__init__("\n  ".join((sentence, *tried)))
        self.tried = tried


class PackageFailed(Exception):
    """A package client is not installed, or did not deliver."""


class DataUnverified(UserWarning):
    """A file decodes, but nobody can tell whether it is the published one."""
