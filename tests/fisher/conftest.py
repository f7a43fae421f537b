from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded_and_on_one_thread() -> Iterator[None]:
    """Tensors here are tiny: a second thread costs more than it brings, the more so beside other work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
