"""BLIP once more, in plain numpy and float64, step by step: one small network, its gradients by hand, every rule.

Written from the method's description and not from the library, so that the two can be compared.
"""

import numpy as np

Array = np.ndarray
BACKBONE = ("w1", "b1", "w2", "b2")


def softmax(z: Array) -> Array:
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


class Reference:
    """inputs - tanh - ReLU - head, with the backbone under one of the rules, by name as in ``blip_support.RULES``."""

    def __init__(self, weights: dict[str, Array], rules: str, prior: float, depth: int = 20, c: float = 6.0) -> None:
        self.w = {name: value.astype(np.float64) for name, value in weights.items()}
        self.rules, self.depth, self.t, self.near_ties = rules, depth, 1, 0
        self.exact = rules in ("strict", "strict_total", "following")
        self.bound, self.bits, self.centre, self.fisher, self.gains = {}, {}, {}, {}, {}
        for name in BACKBONE:
            inputs = self.w["w" + name[1]].shape[1]
            bound = c / np.sqrt(inputs) if name[0] == "w" else 1.0
            if self.exact:
                bound = 2.0 ** np.ceil(np.log2(bound))
            first = prior * ((c / bound) ** 2 if self.exact else inputs)
            shape = self.w[name].shape
            self.bound[name], self.fisher[name] = bound, np.full(shape, first)
            self.bits[name], self.centre[name] = np.zeros(shape, dtype=np.int64), np.zeros(shape)
            self.gains[name] = np.zeros(shape)

    # the network

    def used(self) -> dict[str, Array]:
        """The weights that the passes see: Q(theta, N) with the straight-through estimator."""
        if self.rules != "straight_through":
            return self.w
        return {n: self.q(n, w, self.depth) if n in BACKBONE else w for n, w in self.w.items()}

    def q(self, name: str, w: Array, bits: Array | int) -> Array:
        """Eq. 2 on [-bound, bound]."""
        edge = 1 - 2.0 ** -(np.asarray(bits) + 1.0)
        steps = np.round(np.clip(w / self.bound[name], -edge, edge) * 2.0**bits)
        return self.bound[name] * steps / 2.0**bits

    def passes(self, x: Array, head: int) -> tuple[Array, Array, Array, dict[str, Array]]:
        w = self.used()
        z1 = np.tanh(x @ w["w1"].T + w["b1"])
        a2 = z1 @ w["w2"].T + w["b2"]
        z2 = np.maximum(a2, 0)
        return z1, z2, softmax(z2 @ w[f"h{head}"].T + w[f"c{head}"]), w

    def deltas(self, error: Array, z1: Array, z2: Array, w: dict[str, Array], head: int) -> tuple[Array, Array]:
        d2 = (error @ w[f"h{head}"]) * (z2 > 0)
        return (d2 @ w["w2"]) * (1 - z1**2), d2

    # training

    def step(self, x: Array, y: Array, head: int, rate: float) -> None:
        z1, z2, p, w = self.passes(x, head)
        error = (p - np.eye(p.shape[1])[y]) / len(x)
        d1, d2 = self.deltas(error, z1, z2, w, head)
        gradients = {
            "w1": d1.T @ x, "b1": d1.sum(0), "w2": d2.T @ z1, "b2": d2.sum(0),
            f"h{head}": error.T @ z2, f"c{head}": error.sum(0),
        }  # fmt: skip
        for name, gradient in gradients.items():
            self.w[name] = self.w[name] - rate * gradient
        self.clip()

    def clip(self) -> None:
        for name in BACKBONE:
            bound, reach = self.bound[name], self.bound[name] * 2.0 ** -self.bits[name]
            w = np.clip(self.w[name], self.centre[name] - reach, self.centre[name] + reach)
            if not self.exact:
                edge = bound * (1 - 2.0**-self.depth)
                w = np.clip(w, -edge, edge)
            self.w[name] = w

    # the end of a task

    def exact_fisher(self, x: Array, head: int) -> dict[str, Array]:
        """The mean over samples, and the expectation over labels, of the squared gradient of log p(y|x)."""
        z1, z2, p, w = self.passes(x, head)
        total = {name: np.zeros_like(w[name]) for name in BACKBONE}
        for label in range(p.shape[1]):
            error = np.sqrt(p[:, [label]]) * (np.eye(p.shape[1])[label] - p)
            d1, d2 = self.deltas(error, z1, z2, w, head)
            total["w1"] += (d1**2).T @ x**2
            total["b1"] += (d1**2).sum(0)
            total["w2"] += (d2**2).T @ z1**2
            total["b2"] += (d2**2).sum(0)
        return {name: value / len(x) for name, value in total.items()}

    def consolidate(self, fisher: dict[str, Array], their_bits: dict[str, Array]) -> None:
        """Eqs. 7 to 9. Where the gain is a whole number up to rounding, follow the other side, and count that."""
        t = self.t
        for name in BACKBONE:
            old, new, before, bound = self.fisher[name], fisher[name], self.bits[name], self.bound[name]
            denominator = (t + 1) * old if self.exact or self.rules == "released" else t * old
            gain = 0.5 * np.log2((t * old + new) / denominator)
            if self.rules == "strict_total":  # whole bits of all gains together, less what is frozen
                self.gains[name] = self.gains[name] + gain
                gain = self.gains[name] - before
            bits = np.minimum(self.depth, before + np.maximum(0, np.ceil(gain)).astype(np.int64))
            tie = (bits != their_bits[name]) & (np.abs(gain - np.round(gain)) < 1e-5)
            self.near_ties += int(tie.sum())
            self.bits[name] = bits = np.where(tie, their_bits[name], bits)
            theta = self.w[name]
            if self.exact:
                self.centre[name] = self.grid_centre(name, theta, before, bits)
            elif self.rules == "released":
                snapped = bound * np.round(theta / bound * 2.0**bits) / 2.0**bits
                self.w[name] = self.centre[name] = np.where(bits == 0, 0.0, snapped)
            elif self.rules == "algorithm1":
                self.centre[name] = self.q(name, theta, before)
            else:
                self.centre[name] = self.q(name, theta, bits)
            total = t * old + new
            self.fisher[name] = total if self.rules == "algorithm1" else total / (t + 1)
        self.t += 1

    def grid_centre(self, name: str, theta: Array, before: Array, bits: Array) -> Array:
        """The nearest point of the N-bit grid from which the new interval leaves neither the old one nor, where it
        follows the parameter, the whole range."""
        bound = self.bound[name]
        nearest = np.round(theta / bound * 2.0**self.depth) / 2.0**self.depth * bound
        middle, reach = (0.0, bound) if self.rules == "following" else (self.centre[name], bound * 2.0**-before)
        room = reach - bound * 2.0**-bits
        return np.clip(nearest, middle - room, middle + room)
