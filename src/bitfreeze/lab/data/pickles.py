"""Reading pickles of plain data without unpickling: arrays, numbers, strings, lists, tuples and dictionaries.

Python's unpickler calls whatever a file names, so a file from elsewhere can run any code. Here a machine carries out
the file's instructions, and it has only the instructions that plain data need. A name in the file stands for one of the
few meanings in ``MEANINGS``, or is refused. Nothing is imported, called or set by name, and no array is made before its
bytes have been counted. The memory that a file can use is bounded by its own size.
"""

import mmap
import pickletools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt

from .errors import DataCorrupt

MARK = object()


def read_plain_pickle(path: Path) -> Any:
    """The content of a pickle. Strings of Python 2 are read as Latin-1, which loses no byte (protocol 0: as ASCII)."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return _Machine(len(content)).run(cast(IO[bytes], content))
    except (ValueError, TypeError, IndexError, KeyError, OverflowError) as error:
        raise DataCorrupt(f"{path} is not a pickle of plain data ({error})") from None


class _Refused(ValueError):
    """The file holds something that plain data do not need."""


@dataclass
class _Dtype:
    """Stands for a NumPy dtype: a number's kind, size and byte order."""

    code: str
    order: str = "="

    def build(self, state: Any, memo: dict[int, Any]) -> "_Dtype":
        _, order, *rest = state
        if order not in ("<", ">", "|", "=") or any(part is not None for part in rest[:3]):
            raise _Refused("an array of something else than numbers")
        self.order = order
        return self

    def numpy(self) -> np.dtype[Any]:
        return np.dtype(self.code).newbyteorder(cast(Any, self.order))


@dataclass
class _Unfilled:
    """Stands for an array whose content is still to come. ``places`` are the indices of the memo that hold it."""

    places: list[int] = field(default_factory=list)

    def build(self, state: Any, memo: dict[int, Any]) -> npt.NDArray[Any]:
        _, shape, dtype, fortran, content = state
        array = _array(shape, dtype, "F" if fortran else "C", content)
        memo.update(dict.fromkeys(self.places, array))
        return array


def _array(shape: Any, dtype: Any, order: Any, content: Any) -> npt.NDArray[Any]:
    content = content.encode("latin-1") if isinstance(content, str) else content
    if not isinstance(content, bytes | bytearray) or not isinstance(dtype, _Dtype) or order not in ("C", "F"):
        raise _Refused("an array that is not made of numbers and their bytes")
    if not isinstance(shape, tuple) or len(shape) > 8 or not all(isinstance(n, int) and 0 <= n < 2**40 for n in shape):
        raise _Refused("an array of no shape")
    if prod(shape) * dtype.numpy().itemsize != len(content):
        raise _Refused(f"an array of shape {shape} made of {len(content):,} bytes")
    return np.frombuffer(content, dtype.numpy()).reshape(shape, order=order)


def _dtype(code: Any, *_: Any) -> _Dtype:
    if not isinstance(code, str) or not re.fullmatch(r"b1|[iu][1248]|f[248]", code):
        raise _Refused("an array of something else than numbers")
    return _Dtype(code)


def _encoded(text: Any, encoding: Any) -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise _Refused("bytes in an unknown encoding")
    return text.encode("latin-1")


def _ndarray(*_: Any) -> Any:
    raise _Refused("an array made otherwise than NumPy does")


def _numpy_names(module: str, name: str) -> tuple[str, str]:
    return f"numpy.core.{module} {name}", f"numpy._core.{module} {name}"


MEANINGS: dict[str, Callable[..., Any]] = {
    "numpy ndarray": _ndarray,  # appears only as an argument of the next
    **dict.fromkeys(_numpy_names("multiarray", "_reconstruct"), lambda *_: _Unfilled()),
    **dict.fromkeys(_numpy_names("multiarray", "scalar"), lambda dtype, value: _array((), dtype, "C", value).item()),
    **dict.fromkeys(
        _numpy_names("numeric", "_frombuffer"), lambda value, dtype, shape, order: _array(shape, dtype, order, value)
    ),
    "numpy dtype": _dtype,
    "_codecs encode": _encoded,
    "__builtin__ bytes": lambda: b"",  # protocol 2 writes empty bytes so
}


@dataclass(frozen=True)
class _Named:
    """Stands for a function or class that a file names."""

    meaning: Callable[..., Any]


class _Machine:
    """Carries out a pickle's instructions on a stack and a memo of its own."""

    def __init__(self, size: int) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.left = 2 * size  # bytes that arrays and encoded texts may have together: an array may be made of a text

    def run(self, stream: IO[bytes]) -> Any:
        for opcode, argument, _ in pickletools.genops(stream):
            if opcode.name == "STOP":
                return self.stack.pop()
            if opcode.name not in INSTRUCTIONS:
                raise _Refused(f"the instruction {opcode.name}")
            INSTRUCTIONS[opcode.name](self, argument)
        raise _Refused("no end")

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def push_counted(self, made: Any) -> None:
        """Push a value and count its bytes: a small file that uses a text again and again could fill the memory."""
        if isinstance(made, bytes | np.ndarray):
            self.left -= made.nbytes if isinstance(made, np.ndarray) else len(made)
        if self.left < 0:
            raise _Refused("more content than it has bytes")
        self.push(made)

    def since_mark(self) -> list[Any]:
        start = len(self.stack) - 1
        while self.stack[start] is not MARK:  # below the bottom, an IndexError
            start -= 1
        found = self.stack[start + 1 :]
        del self.stack[start:]
        return found

    def tuple_of(self, count: int) -> None:
        found = [self.stack.pop() for _ in range(count)]
        self.push(tuple(found[::-1]))

    def extend(self, values: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise _Refused("something added to what is no list")
        self.stack[-1].extend(values)

    def set_items(self, values: list[Any]) -> None:
        keys = values[::2]
        if not isinstance(self.stack[-1], dict) or not all(isinstance(key, str | int) for key in keys):
            raise _Refused("something set in what is no dictionary of words and numbers")
        self.stack[-1].update(zip(keys, values[1::2], strict=True))

    def dictionary_of(self, values: list[Any]) -> None:
        self.push({})
        self.set_items(values)

    def remember(self, index: int) -> None:
        top = self.stack[-1]
        self.memo[index] = top
        if isinstance(top, _Unfilled):
            top.places.append(index)

    def name(self, words: str) -> None:
        if words not in MEANINGS:
            raise _Refused(f"it names {words.replace(' ', '.')}, which is not plain data")
        self.push(_Named(MEANINGS[words]))

    def reduce(self) -> None:
        arguments, named = self.stack.pop(), self.stack.pop()
        if not isinstance(named, _Named) or not isinstance(arguments, tuple):
            raise _Refused("a call of something that is no function")
        self.push_counted(named.meaning(*arguments))

    def build(self) -> None:
        state, target = self.stack.pop(), self.stack.pop()
        if not isinstance(target, _Dtype | _Unfilled) or not isinstance(state, tuple):
            raise _Refused("a state for something that has none")
        self.push_counted(target.build(state, self.memo))


Instruction = Callable[[_Machine, Any], None]

INSTRUCTIONS: dict[str, Instruction] = {
    **dict.fromkeys(("PROTO", "FRAME"), lambda machine, _: None),
    **dict.fromkeys(
        (
            "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
            "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
            "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8",
        ),
        _Machine.push,
    ),
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    "MARK": lambda machine, _: machine.push(MARK),
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "EMPTY_TUPLE": lambda machine, _: machine.push(()),
    "DICT": lambda machine, _: machine.dictionary_of(machine.since_mark()),
    "LIST": lambda machine, _: machine.push(machine.since_mark()),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.since_mark())),
    "TUPLE1": lambda machine, _: machine.tuple_of(1),
    "TUPLE2": lambda machine, _: machine.tuple_of(2),
    "TUPLE3": lambda machine, _: machine.tuple_of(3),
    "APPEND": lambda machine, _: machine.extend([machine.stack.pop()]),
    "APPENDS": lambda machine, _: machine.extend(machine.since_mark()),
    "SETITEM": lambda machine, _: machine.set_items([machine.stack.pop(), machine.stack.pop()][::-1]),
    "SETITEMS": lambda machine, _: machine.set_items(machine.since_mark()),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), _Machine.remember),
    "MEMOIZE": lambda machine, _: machine.remember(len(machine.memo)),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda machine, index: machine.push(machine.memo[index])),
    "GLOBAL": _Machine.name,
    "STACK_GLOBAL": lambda machine, _: machine.name(" ".join([machine.stack.pop(), machine.stack.pop()][::-1])),
    "REDUCE": lambda machine, _: machine.reduce(),
    "BUILD": lambda machine, _: machine.build(),
}  # fmt: skip
