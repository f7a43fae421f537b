"""Pickles: plain data come out as Python's own unpickler gives them, and nothing in a file is ever carried out."""

import builtins
import os
import pickle
import struct
import sys
import tracemalloc
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitfreeze.lab.data import DataCorrupt
from bitfreeze.lab.data.pickles import read_plain_pickle

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.lists(inner, max_size=4).map(tuple)
    ),
    max_leaves=20,
)


def read(content: bytes, folder: Path) -> object:
    path = folder / "content.pkl"
    path.write_bytes(content)
    return read_plain_pickle(path)


@given(value=PLAIN, protocol=st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_plain_data_come_out_as_they_went_in(value: object, protocol: int, tmp_path_factory) -> None:
    found = read(pickle.dumps(value, protocol), tmp_path_factory.getbasetemp())
    assert found == value
    assert repr(found) == repr(value)  # types too: True is not 1


ARRAYS = {
    "bytes": np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
    "another byte order": np.arange(5, dtype=">i4"),
    "Fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "truth": np.array([True, False]),
    "no axis": np.array(3.5, np.float32),
    "scalar": np.int64(7),
    "slices": np.arange(20, dtype=np.int16)[::3],
}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_arrays_come_out_as_they_went_in(array: np.ndarray, protocol: int, tmp_path: Path) -> None:
    found = read(pickle.dumps({"a": array, "again": [array, array]}, protocol), tmp_path)
    assert isinstance(found, dict)
    for each in (found["a"], *found["again"]):
        np.testing.assert_array_equal(each, array)
        assert np.asarray(each).dtype == array.dtype


def test_a_pickle_of_python_2_with_strings_of_bytes(tmp_path: Path) -> None:
    """As CIFAR's are: keys and pixels are byte strings, names are those of an old NumPy."""
    pixels = bytes(range(250, 256))
    content = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b\x87Rq\x05"
        b"(K\x01K\x02K\x03\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89U\x06" + pixels + b"tbU\x06labels]q\x08(K\x03K\x04eu."
    )
    found = read(content, tmp_path)
    assert isinstance(found, dict)
    assert found["labels"] == [3, 4]
    assert found["data"].tolist() == [[250, 251, 252], [253, 254, 255]]


class Calls:
    """Pickles to a call."""

    def __init__(self, function: object, *arguments: object, state: object = None) -> None:
        self.parts = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self) -> tuple[object, ...]:
        return self.parts


def evil_state(target: Path) -> bytes:
    """Sets attributes of what the file names, by BUILD."""
    return b"cnumpy\ndtype\n}U\x0c__defaults__" + b"(U\x01xtsb."


EVIL = {
    "os.system": lambda target: pickle.dumps(Calls(os.system, f"touch {target}")),
    "eval": lambda target: pickle.dumps(Calls(builtins.eval, f"open({str(target)!r}, 'w')")),
    "exec": lambda target: pickle.dumps(Calls(builtins.exec, f"open({str(target)!r}, 'w')")),
    "open": lambda target: pickle.dumps(Calls(builtins.open, str(target), "w")),
    "in a list, old protocol": lambda target: pickle.dumps([1, Calls(os.system, f"touch {target}")], 0),
    "getattr": lambda target: b"cbuiltins\ngetattr\n(cos\nsystem\nU\x01xtR.",
    "numpy.load": lambda target: pickle.dumps(Calls(np.load, str(target))),
    "numpy.fromfile": lambda target: b"cnumpy\nfromfile\n(U\x01xtR.",
    "numpy's test runner": lambda target: b"cnumpy.testing._private.utils\nrunstring\n(U\x0bimport nonet}tR.",
    "numpy.vectorize": lambda target: pickle.dumps(Calls(np.vectorize, os.system)),
    "functools.partial": lambda target: b"cfunctools\npartial\n(cos\nsystem\nU\x01xtR.",
    "a name with dots": lambda target: b"\x80\x04\x8c\x05numpy\x8c\x0fndarray.tofile\x93.",
    "STACK_GLOBAL": lambda target: b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x05touch\x85R.",
    "STACK_GLOBAL of no names": lambda target: b"\x80\x04K\x01K\x02\x93.",
    "INST": lambda target: b"(U\x05touchios\nsystem\n.",
    "OBJ": lambda target: b"(cos\nsystem\nU\x05toucho.",
    "NEWOBJ": lambda target: b"\x80\x02cnumpy\nndarray\n(K\x05t\x81.",
    "extension codes": lambda target: b"\x80\x02\x82\x01.",
    "persistent names": lambda target: b"Pname\n.",
    "state of a name": evil_state,
    "state of a dictionary": lambda target: b"}}b.",
    "state of a list": lambda target: b"](tb.",
    "a call of a string": lambda target: b"U\x01x)R.",
    "a call of a call": lambda target: b"cnumpy\ndtype\n(U\x02u1tR)R.",
    "ndarray called": lambda target: b"cnumpy\nndarray\n(K\x05tR.",
    "an object array": lambda target: pickle.dumps(np.array([{}, []], object)),
    "a structured array": lambda target: pickle.dumps(np.zeros(2, [("a", "u1")])),
    "an array of dates": lambda target: pickle.dumps(np.array(["2020-01-01"], "datetime64[D]")),
    "numbers with fields": lambda target: b"cnumpy\ndtype\n(U\x02u1tR(K\x03U\x01|N(U\x01at}tb.",
    "another class": lambda target: pickle.dumps(OrderedDict(a=1)),
    "a set": lambda target: pickle.dumps({1, 2}, 4),
    "unhashable keys": lambda target: b"}]Ns.",
    "keys that are slow to hash": lambda target: b"}" + b")" + b"q\x00h\x00\x86" * 60 + b"Ns.",
    "bytes of a length": lambda target: b"c__builtin__\nbytes\n(K\x05tR.",
    "no content": lambda target: b"",
    "no end": lambda target: pickle.dumps([1, 2])[:-1],
    "rubbish": lambda target: b"rubbish",
    "nothing on the stack": lambda target: b"a.",
    "no mark": lambda target: b"]t.",
    "an unknown memo": lambda target: b"h\x09.",
}  # fmt: skip


@pytest.mark.parametrize("make", EVIL.values(), ids=EVIL)
def test_what_is_not_plain_data_is_refused_and_nothing_happens(make, tmp_path: Path) -> None:
    target = tmp_path / "done"
    before = set(sys.modules)
    with pytest.raises(DataCorrupt, match=r"content\.pkl is not a pickle of plain data \("):
        read(make(target), tmp_path)
    assert not target.exists()
    assert set(sys.modules) == before  # not even an import


HUGE = {
    "bytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"abc.",
    "text": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b"abc.",
    "a frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 40) + b"\x8e" + struct.pack("<Q", 1 << 62) + b".",
    "a bytearray": b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"abc.",
    "an array": pickle.dumps(np.zeros((3, 3), np.uint8), 2).replace(b"K\x03K\x03", b"J\xff\xff\xff\x7fK\x03"),
    "a memo": b"Nr\xff\xff\xff\x7f",
    "a type that is long to name": b"\x80\x02cnumpy\ndtype\n)" + b"q\x00h\x00\x86" * 60 + b"\x85R.",
    "a type that is deep": b"\x80\x02cnumpy\ndtype\n)" + b"\x85" * 100_000 + b"\x85R.",
    "a text encoded again and again": (
        b"\x80\x02X" + struct.pack("<I", 1 << 17) + b"a" * (1 << 17) + b"q\x00"
        + b"c_codecs\nencode\nh\x00X\x06\x00\x00\x00latin1\x86R" * 200 + b"."
    ),
    "a shape that is long to multiply": (
        b"\x80\x02cnumpy.core.numeric\n_frombuffer\n(C\x01acnumpy\ndtype\n(U\x02u1tR(\x8b"
        + struct.pack("<I", 1 << 10) + b"\x7f" * (1 << 10) + b"q\x00" + b"h\x00" * 1000 + b"tU\x01CtR."
    ),
}  # fmt: skip


@pytest.mark.parametrize("content", HUGE.values(), ids=HUGE)
def test_a_small_file_cannot_take_much_memory(content: bytes, tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(DataCorrupt):
            read(content, tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 5 << 20
    finally:
        tracemalloc.stop()


def test_a_list_that_holds_itself_is_read(tmp_path: Path) -> None:
    own: list[object] = []
    own.append(own)
    found = read(pickle.dumps(own), tmp_path)
    assert isinstance(found, list)
    assert found[0] is found


@given(content=st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(content: bytes, tmp_path_factory) -> None:
    with suppress(DataCorrupt):
        read(b"\x80\x02" + content, tmp_path_factory.getbasetemp())
