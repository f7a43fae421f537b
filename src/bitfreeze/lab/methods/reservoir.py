"""A uniform sample of all rows that ever came, in a fixed number of places."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class Reservoir:
    """Keeps each of the rows that came with the same probability (Vitter's algorithm R).

    A row has a field for each tensor that ``add`` is given, such as a picture and its label. Row number n, from 0,
    takes place n while places are free. Later it takes place r, drawn from 0 to n, if there is such a place.
    """

    def __init__(self, places: int) -> None:
        self.places = places
        self.seen = 0
        self.fields: dict[str, Tensor] = {}

    def __len__(self) -> int:
        return min(self.seen, self.places)

    def add(self, **rows: Tensor) -> None:
        """Let rows take part, in their order. All fields have the same number of rows.

        A field of vectors may get wider ones later. Narrower ones have 0 in the places that they lack.
        """
        chosen = self._choose(len(next(iter(rows.values()))))
        places, these = (torch.tensor(list(side)) for side in (chosen.keys(), chosen.values()))
        for name, new in rows.items():
            if name not in self.fields:
                self.fields[name] = new.new_zeros(self.places, *new.shape[1:])
            held, new = _equally_wide(self.fields[name], new)
            if chosen:
                held[places.to(held.device)] = new[these.to(new.device)]
            self.fields[name] = held

    def _choose(self, count: int) -> dict[int, int]:
        """The new row for each place that gets one. Of several rows for one place the last stays."""
        numbers = torch.arange(self.seen, self.seen + count)
        drawn = (torch.rand(count, dtype=torch.float64) * (numbers + 1)).long()
        places = torch.where(numbers < self.places, numbers, drawn).tolist()
        self.seen += count
        return {place: row for row, place in enumerate(places) if place < self.places}

    def draw(self, count: int) -> dict[str, Tensor]:
        """``count`` rows without repeats, or all where there are fewer."""
        rows = torch.randperm(len(self))[:count]
        return {name: values[rows.to(values.device)] for name, values in self.fields.items()}

    @property
    def nbytes(self) -> int:
        """Memory of all places, in bytes."""
        return sum(values.nbytes for values in self.fields.values())

    def state_dict(self) -> dict[str, Any]:
        """Copies, because later rows are written into the same places."""
        return {"seen": self.seen, "fields": {name: values.clone() for name, values in self.fields.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]
        self.fields = {name: values.clone() for name, values in state["fields"].items()}


def _equally_wide(held: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    if held.ndim != 2:
        return held, new
    widest = max(held.shape[1], new.shape[1])
    return F.pad(held, (0, widest - held.shape[1])), F.pad(new, (0, widest - new.shape[1]))
