"""The step that all methods share."""

import pytest
import torch

from bitfreeze.lab.methods import make_method
from bitfreeze.lab.nets import build_network
from bitfreeze.lab.tasks import Batch, Task


def moved_by_one_step(clip: float | None) -> torch.Tensor:
    torch.manual_seed(0)
    task = Task(0, "only", 2)
    method = make_method("ft", {"clip": clip})
    net = method.build(build_network({"kind": "mlp", "hidden": [5]}, (4,), [2]), (task,))
    before = torch.nn.utils.parameters_to_vector(net.parameters()).detach().clone()
    x = torch.randn(8, 4)
    method.train_batch(Batch(x, (x[:, 0] > 0).long(), task), 0.0, method.optimizers(task, lr=1.0))
    return torch.nn.utils.parameters_to_vector(net.parameters()).detach() - before


def test_gradients_are_clipped_to_a_norm_and_keep_their_direction():
    free = moved_by_one_step(None)
    clipped = moved_by_one_step(free.norm().item() / 10)
    assert clipped.norm().item() == pytest.approx(free.norm().item() / 10, rel=1e-3)
    assert torch.allclose(clipped * 10, free, atol=1e-3 * free.norm().item())
    assert torch.equal(moved_by_one_step(100 * free.norm().item()), free)
