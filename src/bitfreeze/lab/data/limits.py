"""How much a source may deliver: the sizes that the catalogue knows, and a little more."""

from dataclasses import dataclass

SLACK = 1.25  # mirrors pack the same content in other ways


def most(known: int) -> int:
    """The largest number that is accepted where ``known`` is the published one."""
    return int(SLACK * known)


@dataclass(frozen=True)
class Contents:
    """What an archive holds: the bytes of all its files together, and the number of its files and folders."""

    bytes: int
    members: int
