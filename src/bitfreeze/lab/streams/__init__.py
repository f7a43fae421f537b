"""Streams: sequences of tasks made from data. Each file here registers its own."""

from ..registry import import_all
from .registry import StreamRecord, make_stream, register_stream, streams
from .stream import Stream

__all__ = ["Stream", "StreamRecord", "make_stream", "register_stream", "streams"]

import_all(__name__, __path__)
