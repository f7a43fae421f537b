"""Streams of tasks made from data."""

from .registry import StreamRecord, make_stream, register_stream, streams
from .stream import Split, Stream, Task, TaskData

__all__ = ["Split", "Stream", "StreamRecord", "Task", "TaskData", "make_stream", "register_stream", "streams"]
