"""Second moments of rows, and their strongest directions."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..model.ranks import Ranks

SPARE = 16  # columns beyond the wanted ones, which make the iteration converge faster
ROUNDS = 12
SETTLED = 1e-3  # relative change of the strength that the columns hold at which the iteration ends
WHOLE_BELOW = 256  # width up to which all directions are computed, because that is cheap, and in double precision
POSITIONS = 32  # of a sample that take part in a square moment: neighbouring positions are alike
SAMPLES_IN_FULL = 64  # samples all of whose positions take part, for data of few long samples

Directions = tuple[Tensor, Tensor]  # vectors [g, width, k] with orthonormal columns, values [g, k]; strongest first


class SquareMoment:
    """The sum of rows r r^T as a matrix [g, width, width]."""

    def __init__(self, groups: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self.total = torch.zeros(groups, width, width, dtype=dtype, device=device)

    @property
    def nbytes(self) -> int:
        return self.total.nbytes

    def add(self, rows: Tensor, alive: Tensor, numbers: range, score: int) -> None:
        """Add the rows [n, g, l, width] for which ``alive`` [n, g, l] is true."""
        self._add(rows if bool(alive.all()) else rows * alive.unsqueeze(-1))

    def _add(self, rows: Tensor) -> None:
        flat = rows.transpose(0, 1).flatten(1, 2)
        self.total.baddbmm_(flat.mT, flat)

    def add_some(self, rows: Tensor, weights: Tensor) -> None:
        """Add rows [n, g, p, width] of chosen positions with their weights [n, g, p]."""
        self._add(rows * weights.to(rows).sqrt().unsqueeze(-1))

    def sum_over(self, ranks: Ranks) -> None:
        ranks.sum_(self.total)

    def directions(self, k: int, earlier: Directions | None = None) -> Directions:
        """The k strongest directions of the sum, with ``earlier`` directions and their values added to it."""
        width = self.total.shape[-1]
        if width <= max(WHOLE_BELOW, 3 * k):
            total = self.total.double() if width <= WHOLE_BELOW else self.total
            if earlier is not None:
                vectors, values = (tensor.to(total) for tensor in earlier)
                total = total + (vectors * values.unsqueeze(1)) @ vectors.mT
            values, vectors = torch.linalg.eigh(total)
            values, vectors = values.flip(-1)[:, :k].clamp_(min=0), vectors.flip(-1)[..., :k]
            return vectors.to(self.total.dtype), values
        return _strongest(_with_earlier(lambda q: self.total @ q, earlier), self.total, k, earlier)


class SampledMoment:
    """The sum of rows r r^T from some of the rows, chosen at random, each with the same probability.

    Which rows are chosen depends on the number of the sample and on the position, not on batches or ranks.
    """

    def __init__(self, groups: int, width: int, dtype: torch.dtype, device: torch.device, most: int) -> None:
        self.most = most
        self.kept = torch.zeros(0, groups, width, dtype=dtype, device=device)
        self.tickets = torch.zeros(0, dtype=torch.int64, device=device)  # the rows with the lowest tickets are kept
        self.seen = 0  # rows that took part

    @property
    def nbytes(self) -> int:
        return self.kept.nbytes + self.tickets.nbytes

    def add(self, rows: Tensor, alive: Tensor, numbers: range, score: int) -> None:
        """Let the rows [n, g, l, width] take part for which ``alive`` [n, g, l] is true in any group."""
        sample, position = alive.any(1).nonzero(as_tuple=True)
        self.seen += len(sample)
        number = torch.tensor(numbers, device=alive.device)[sample]
        tickets = _mixed(_mixed(_mixed(number) + position) + score)
        if len(self.tickets) == self.most:
            good = tickets < self.tickets.max()
            sample, position, tickets = sample[good], position[good], tickets[good]
        tickets, order = tickets.sort()
        tickets, sample, position = tickets[: self.most], sample[order[: self.most]], position[order[: self.most]]
        new = rows.permute(0, 2, 1, 3)[sample, position] * alive.transpose(1, 2)[sample, position].unsqueeze(-1)
        self.tickets, order = torch.cat([self.tickets, tickets]).sort()
        self.tickets, order = self.tickets[: self.most], order[: self.most]
        self.kept = torch.cat([self.kept, new])[order]

    def sum_over(self, ranks: Ranks) -> None:
        if ranks.count == 1:
            return
        own = self.tickets.tolist()
        self.seen = sum(ranks.gather(self.seen))
        lowest = sorted(ticket for tickets in ranks.gather(own) for ticket in tickets)[: self.most]
        place = {ticket: k for k, ticket in enumerate(lowest)}
        mine = [k for k, ticket in enumerate(own) if ticket in place]
        every = self.kept.new_zeros(len(lowest), *self.kept.shape[1:])
        every[[place[own[k]] for k in mine]] = self.kept[mine]
        self.kept, self.tickets = ranks.sum_(every), torch.tensor(lowest, device=self.tickets.device)

    def rows(self) -> Tensor:
        """Rows [g, rows, width], scaled so that rows^T rows estimates the sum over all rows."""
        return self.kept.transpose(0, 1) * math.sqrt(self.seen / max(1, len(self.kept)))

    def directions(self, k: int, earlier: Directions | None = None) -> Directions:
        """The k strongest directions of the sum, with ``earlier`` directions and their values added to it."""
        rows = self.rows()
        if earlier is not None:
            vectors, values = earlier
            rows = torch.cat([rows, (vectors.to(rows) * values.to(rows).clamp(min=0).sqrt().unsqueeze(1)).mT], 1)
        most = min(rows.shape[1:])
        k = min(k, most)
        if most <= max(WHOLE_BELOW, 4 * k):
            _, values, vectors = torch.linalg.svd(rows.double(), full_matrices=False)
            return vectors[:, :k].mT.to(rows.dtype), values[:, :k].square()
        return _strongest(lambda q: rows.mT @ (rows @ q), rows, k, earlier)


Moment = SquareMoment | SampledMoment


def _with_earlier(times: Callable[[Tensor], Tensor], earlier: Directions | None) -> Callable[[Tensor], Tensor]:
    """A product with a symmetric matrix to which earlier directions are added."""
    if earlier is None:
        return times
    vectors, values = earlier

    def product(q: Tensor) -> Tensor:
        u = vectors.to(q)
        return times(q) + u @ (values.to(q).unsqueeze(-1) * (u.mT @ q))

    return product


def _strongest(times: Callable[[Tensor], Tensor], like: Tensor, k: int, start: Directions | None) -> Directions:
    """Strongest directions of a large symmetric matrix, given as a product with it: subspace iteration.

    All eigenvectors of a 2048 x 2048 matrix take seconds, and the strongest tenth of them a small part of that. The
    iteration begins with the directions ``start``, which earlier tasks had.
    """
    groups, _, width = like.shape
    draws = torch.Generator().manual_seed(0)
    q = torch.randn(groups, width, k + SPARE, generator=draws, dtype=like.dtype, device="cpu").to(like.device)
    if start is not None:
        q = torch.cat([start[0].to(q), q], -1)[..., : k + SPARE]
    q = torch.linalg.qr(q).Q
    product, before = times(q), torch.zeros(groups, dtype=like.dtype, device=like.device)
    for _ in range(ROUNDS):
        strength = (q * product).sum((1, 2))
        if bool((strength - before <= SETTLED * strength).all()):
            break
        q, before = torch.linalg.qr(product).Q, strength
        product = times(q)
    values, turn = torch.linalg.eigh((q.mT @ product).double())
    vectors = q @ turn.flip(-1)[..., :k].to(q)
    return _orthonormal(vectors), values.flip(-1)[:, :k].clamp_(min=0)


def _orthonormal(vectors: Tensor) -> Tensor:
    """Nearly orthonormal columns with their rounding mended: one step of Newton's method for the nearest such ones."""
    overlap = vectors.mT @ vectors
    return vectors @ (1.5 * torch.eye(overlap.shape[-1]).to(overlap) - 0.5 * overlap)


def chosen_positions(alive: Tensor, numbers: range) -> tuple[Tensor, Tensor]:
    """Some of the positions of each sample that are alive in any group, each with the same chance.

    Args:
        alive: which positions [n, g, l] take part.
        numbers: number of each sample, which alone decides between its positions.

    Returns:
        Positions [n, p], and the weight of each in each group, [n, g, p]. A position counts for those that were not
        chosen too, and with 0 where it is not alive.
    """
    number = torch.tensor(numbers, device=alive.device).unsqueeze(1)
    tickets = _mixed(_mixed(number) + torch.arange(alive.shape[2], device=alive.device))
    anywhere = alive.any(1)
    tickets = tickets.masked_fill(~anywhere, torch.iinfo(tickets.dtype).max)
    places = tickets.topk(POSITIONS, 1, largest=False, sorted=False).indices
    count = anywhere.sum(1).clamp(min=POSITIONS)
    chosen = alive.gather(2, places.unsqueeze(1).expand(-1, alive.shape[1], -1))
    return places, chosen * (count / POSITIONS).view(-1, 1, 1)


def _mixed(x: Tensor) -> Tensor:
    """Pseudo-random 62-bit integers, equal for equal numbers (two rounds of multiply and shift)."""
    for factor in (0x9E3779B97F4A7C1, 0xBF58476D1CE4E5B):
        x = (x + 0x632BE59BD9B4E01) * factor  # wraps around
        x = (x ^ (x >> 29)) & (2**62 - 1)
    return x


def unit_interval(x: Tensor) -> Tensor:
    """Pseudo-random numbers in [0, 1), equal for equal integers."""
    return _mixed(x).double() / 2**62
