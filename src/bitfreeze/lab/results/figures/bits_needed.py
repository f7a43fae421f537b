"""Frozen bits of a run, for figures that need them."""

from ..bit_history import BitHistory
from ..stored import StoredRun


def bits_of(run: StoredRun, what: str) -> BitHistory:
    if run.bits is None:
        why = "blip keeps them under rules by weight (--variant strict), unless it is run with --no-keep-bits"
        raise ValueError(f"{what} needs frozen bits, and {run.folder.path} has none: {why}")
    return run.bits
