"""Low-rank adapters of a model whose own weights stay: held so that the merged weights keep what was measured.

With B = 0 the Fisher of A is 0, so watching A and B protects nothing. What is held is the change s B A of each weight,
in the intervals that the weight itself has (low_rank.py).
"""

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..model.autocast import without_autocast
from .attachment import Attachment, Attachments
from .blip import BLIP
from .checks import require_tolerance
from .directions import DRIFT_FACTOR, Directions
from .lookout import Lookout, note_holder
from .low_rank import LowRankLayer, Term, without_bias
from .protection import Table, entries_of, loaded_turning
from .widening import Widening

Terms = Callable[[], Sequence[Term]]  # the products that a layer's weight has besides itself, now
Layers = Mapping[str, Terms]  # by the name of a layer's weight


class HeldAdapters:
    """Keeps the change of layers by their adapters within a tolerance. ``bitfreeze.integrations.peft`` makes one.

    Args:
        table: what was measured, as ``bitfreeze.blip.protection.table_of`` has it.
        layers: by the name of a layer's weight in the table, what its adapters are now.
        tolerance: nats a sample (a predicted token, for sequences) that the adapters may cost.
        look: the layers as they are now. It is asked when an optimizer steps parameters that none has stepped before.
    """

    def __init__(
        self, table: Table, layers: Layers, tolerance: float, look: Callable[[], Layers] | None = None
    ) -> None:
        require_tolerance(tolerance)
        self.tolerance, self.positions = tolerance, float(table["positions"])
        self._table, self._look = table, look
        self._known: set[int] = set()  # parameters that some optimizer has stepped
        self._lookout: Lookout | None = None
        self.terms: dict[str, Terms] = {}
        self.layers: dict[str, LowRankLayer] = {}
        self._take_in(layers)
        # Intervals are for as many coordinates as there are weights. Adapters move fewer, so theirs may be wider. The
        # width shrinks as soon as the estimated cost is above the tolerance.
        entries = sum(_numel(saved["shape"]) for saved in table["tensors"].values() if "shape" in saved)
        moving = sum(
            term.up.numel() + term.down.numel() for terms in layers.values() for term in terms() if term.learns
        )
        self.widening = Widening(max(1.0, sqrt(entries / max(1, moving))))
        self._attachments = Attachments()

    def attach(self) -> Attachment:
        """Hold the adapters after each step of whatever optimizer steps them. Ends with this object."""
        return self._attachments.to(self, None)[0]

    def detach(self) -> None:
        """End all holding."""
        self._attachments.remove()
        if self._lookout is not None:
            self._lookout.end()

    def look_out(self, model: nn.Module, parameters: Sequence[Tensor]) -> None:
        """Look out for steps of these parameters that nothing holds, because this object is gone."""
        note_holder(model, self)
        self._lookout = Lookout(self, model, parameters, self._attachments)

    def _take_in(self, layers: Layers) -> None:
        """Hold these layers, of which some may be held already."""
        self.terms = dict(layers)
        new = [name for name in layers if name not in self.layers]
        prior = self._table["prior"] * self.tolerance
        self.layers |= {name: _layer(self._table, name, prior) for name in new}

    @torch.no_grad()
    @without_autocast
    def clamp_(self) -> None:
        """Move the adapters to where the merged weights lie in their intervals. A second call changes nothing."""
        while self._spent(self._hold_()):
            pass

    @torch.no_grad()
    @without_autocast
    def drift(self) -> float:
        """Estimated nats a sample (a predicted token) that the active adapters cost, without any data."""
        costs = [self.layers[name].cost(terms) for name, terms in self._current().items()]
        return DRIFT_FACTOR * sum(costs) / self.positions

    def settle(self, blip: BLIP) -> None:
        """Tell a BLIP of the same weights, into which the adapters were merged, how wide their intervals were.

        Its next ``consolidate`` then leaves what was learned where it is.

        Args:
            blip: a BLIP along directions that holds the weights which the adapters are added to.

        Raises:
            ValueError: the BLIP has rules by weight.
        """
        guard = blip._tensors
        if not isinstance(guard, Directions):
            raise ValueError("blip must hold along directions, got rules by weight; use Rules.directions()")
        guard.set_width(self.widening.width)

    def nbytes(self) -> int:
        """Bytes of state, which do not grow with tasks."""
        return sum(
            tensor.nbytes
            for layer in self.layers.values()
            for tensor in (*layer.turning.tensors().values(), layer.rows, layer.columns)
        )

    def _current(self) -> dict[str, Sequence[Term]]:
        found = {name: terms() for name, terms in self.terms.items()}
        return {name: terms for name, terms in found.items() if terms}

    def _hold_(self) -> float:
        """Hold with the width in force. Returns the share of the tolerance that is spent."""
        width = self.widening.width
        cost = sum(self.layers[name].hold_(terms, width) for name, terms in self._current().items())
        return DRIFT_FACTOR * cost / (self.positions * self.tolerance)

    def _spent(self, share: float) -> bool:
        """Set the width by the share of the tolerance that is spent. Returns whether intervals are narrower now."""
        width = self.widening.width
        self.widening.set(share)
        return self.widening.width < width

    def _clamps(self, optimizer: Optimizer) -> bool:
        return self._attachments.clamp_after(optimizer)

    def _watches(self, optimizer: Optimizer) -> bool:
        stepped = _storages(optimizer)
        return any(t.up.untyped_storage().data_ptr() in stepped for terms in self._current().values() for t in terms)

    def _before_step(self, optimizer: Optimizer, *, has_closure: bool) -> None:
        """Take in adapters that were added since."""
        stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if self._look is not None and not stepped <= self._known:
            self._take_in(self._look())
            self._known |= stepped

    def _after_step(self, optimizer: Optimizer) -> bool:
        stepped = _storages(optimizer)
        learning = (t.up for terms in self._current().values() for t in terms if t.learns)
        if not any(up.untyped_storage().data_ptr() in stepped for up in learning):
            return False
        self.widening.steps += 1
        self.clamp_()
        return True


def _storages(optimizer: Optimizer) -> set[int]:
    return {p.untyped_storage().data_ptr() for group in optimizer.param_groups for p in group["params"]}


def _layer(table: Table, name: str, prior: float) -> LowRankLayer:
    turning, saved = loaded_turning(table["directions"][name]), table["tensors"][name]
    outputs, inputs = saved["shape"][0], _numel(saved["shape"][1:])
    if turning.inputs_first:
        outputs, inputs = inputs, outputs
    turning = without_bias(turning) if turning.inputs.shape[1] > inputs else turning
    sums = {"rows": torch.zeros(outputs), "columns": torch.zeros(inputs)}
    if "fisher" in saved:
        found = saved["fisher"] if "rows" in saved["fisher"] else _sums(entries_of(saved["fisher"], saved["shape"]))
        first, second = ("columns", "rows") if turning.inputs_first else ("rows", "columns")
        sums = {"rows": found[first], "columns": found[second]}
    return LowRankLayer(turning, sums["rows"], sums["columns"], prior)


def _sums(fisher: Tensor) -> dict[str, Tensor]:
    matrix = fisher.reshape(len(fisher), -1)
    return {"rows": matrix.sum(1), "columns": matrix.sum(0) / matrix.sum().clamp(min=torch.finfo().tiny)}


def _numel(shape: Any) -> int:
    return int(torch.Size(shape).numel())
