"""Chunks of samples: all of them, each once, and no more at a time than the limit allows."""

from hypothesis import given
from hypothesis import strategies as st

from bitfreeze.fisher.memory import memory_limit, row_chunks


@given(st.integers(0, 50), st.integers(0, 100), st.integers(0, 2000), st.none() | st.integers(0, 2000))
def test_chunks_cover_the_rows_within_the_limit(rows, row_bytes, limit, ceiling):
    with memory_limit(limit):
        chunks = list(row_chunks(rows, row_bytes, ceiling))
    assert [row for chunk in chunks for row in range(chunk.start, chunk.stop)] == list(range(rows))
    allowed = limit if ceiling is None else min(limit, ceiling)
    assert all((chunk.stop - chunk.start) * row_bytes <= allowed or chunk.stop - chunk.start == 1 for chunk in chunks)


def test_limit_ends_with_its_context():
    before = list(row_chunks(10, 1000))
    with memory_limit(1000):
        assert len(list(row_chunks(10, 1000))) == 10
    assert list(row_chunks(10, 1000)) == before == [slice(0, 10)]
