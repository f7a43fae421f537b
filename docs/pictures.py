"""Draws the pictures of docs/explanation/pictures.md into docs/images/, with fixed seeds: `python docs/pictures.py`."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import matplotlib
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from bitfreeze import BLIP, diagonal_fisher
from bitfreeze.lab.data import load_digits
from bitfreeze.lab.results.figures.style import BLUE, GREEN, GREY, INK, ORANGE, PALE, SKY, STYLE
from bitfreeze.likelihoods import Bernoulli

HERE = Path(__file__).parent
PIXELS = (18, 26)  # one below the other, in the upper left of the picture
NATS = 0.05
TOLERANCES = (0.0005, 0.005, 0.05, 0.5, 5.0)
SEEDS = (0, 1, 2)


class Layer(NamedTuple):
    """A unit with two inputs that tells the digit 5 from others, and what its data say about its two weights."""

    inputs: Tensor  # [samples, 2]
    weights: Tensor  # [2]
    bias: Tensor
    directions: Tensor  # [2, 2], a direction a column, the strongest first
    fisher: Tensor  # of each weight
    turned_fisher: Tensor  # of each coordinate along directions


def two_weights() -> Layer:
    images, labels = load_digits()
    inputs = images.flatten(1)[:, PIXELS].float() / 16
    target = (labels == 5).float()
    torch.manual_seed(0)
    unit = nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(unit.parameters(), max_iter=100)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(unit(inputs)[:, 0], target)
        loss.backward()
        return loss

    optimizer.step(closure)
    moments = inputs.T @ inputs / len(inputs)
    directions = torch.linalg.eigh(moments).eigenvectors.flip(1)
    directions = directions * directions.sum(0).sign()
    turned = nn.Linear(2, 1)  # the same unit, whose inputs are read along directions
    turned.load_state_dict({"weight": unit.weight.detach() @ directions, "bias": unit.bias.detach()})
    along = [fisher_of(unit, inputs), fisher_of(turned, inputs @ directions)]
    return Layer(inputs, unit.weight.detach()[0], unit.bias.detach()[0], directions, *along)


def fisher_of(unit: nn.Linear, inputs: Tensor) -> Tensor:
    return diagonal_fisher(unit, [inputs], forward=lambda x: Bernoulli(unit(x)), labels="exact")["weight"][0]


def lost(layer: Layer, change: Tensor) -> Tensor:
    """Nats a sample that the unit loses when its weights change: the mean KL divergence. change: [..., 2]"""
    before = layer.inputs @ layer.weights + layer.bias
    after = (layer.weights + change) @ layer.inputs.T + layer.bias
    p = before.sigmoid()
    up, down = F.logsigmoid(before) - F.logsigmoid(after), F.logsigmoid(-before) - F.logsigmoid(-after)
    return (p * up + (1 - p) * down).mean(-1)


def radii(fisher: Tensor) -> Tensor:
    """Half the sides of a box in which each of the coordinates may cost its equal share of the tolerance."""
    return (2 * NATS / len(fisher) / fisher).sqrt()


def box(centres: Tensor) -> Tensor:
    """Corners of the box with these half sides, in order around it."""
    signs = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0], [-1.0, 1.0]])
    return signs * centres


def directions() -> Figure:
    layer = two_weights()
    figure = Figure(figsize=(9.2, 3.5))
    data, by_weight, along = figure.subplots(1, 3)
    jitter = (torch.rand(layer.inputs.shape, generator=torch.Generator().manual_seed(0)) - 0.5) / 16
    data.plot(*(layer.inputs + jitter).T, ".", color=SKY, markersize=2, alpha=0.5, rasterized=True)
    named = ("direction 1:\nboth together", ORANGE), ("direction 2:\none against\nthe other", GREEN)
    for k, (name, colour) in enumerate(named):
        ends = [(0.5 + sign * 0.38 * layer.directions[:, k]).tolist() for sign in (1, -1)]
        data.annotate("", *ends, arrowprops={"arrowstyle": "<->", "color": colour, "linewidth": 2})
        data.text(1.02, 0.86 - 0.74 * k, name, color=colour, transform=data.transAxes, va="center")
    data.set(xlim=(-0.05, 1.05), ylim=(-0.05, 1.05), aspect="equal", xticks=[0, 1], yticks=[0, 1])
    data.set(xlabel="brightness of a pixel", ylabel="brightness of the pixel below")
    data.set_title("1: what the inputs do", loc="left")
    boxes = (box(radii(layer.fisher)), box(radii(layer.turned_fisher)) @ layer.directions.T)
    reach = 1.15 * max(float(corners.abs().max()) for corners in boxes)
    grid = torch.linspace(-reach, reach, 121)
    change = torch.stack(torch.meshgrid(grid, grid, indexing="xy"), -1)
    nats = lost(layer, change)
    titles = ("2: an interval a weight", "3: an interval a direction")
    for axes, corners, title, colour in zip((by_weight, along), boxes, titles, (ORANGE, BLUE), strict=True):
        lines = axes.contour(grid, grid, nats, [0.0125, 0.05, 0.2, 0.8], colors=GREY, linewidths=0.9)
        axes.clabel(lines, fmt="%g", fontsize=7)
        axes.fill(*corners.T, facecolor=colour, alpha=0.25, edgecolor=colour, linewidth=1.8)
        axes.plot(0, 0, "o", color=INK, markersize=4)
        worst = lost(layer, corners).max()
        area = float((corners[0] - corners[1]).norm() * (corners[1] - corners[2]).norm())
        axes.set_title(f"{title}\narea {area:.1f}, worst corner\n{worst:.3f} nats", loc="left")
        axes.set(aspect="equal", xlabel="change of weight 1", ylabel="change of weight 2")
    return figure


def bits() -> Figure:
    """One coordinate of the unit above: its interval with each number of frozen bits, and what its edge costs."""
    fisher = float(two_weights().fisher[0])
    bound = 4.0
    figure = Figure(figsize=(9.2, 2.9))
    axes = figure.subplots()
    for frozen in range(7):
        radius = bound * 2.0**-frozen
        axes.barh(frozen, 2 * bound, 0.62, -bound, color=PALE)
        axes.barh(frozen, 2 * radius, 0.62, -radius, color=SKY, edgecolor=BLUE)
        cost = fisher * radius**2 / 2
        axes.text(bound * 1.04, frozen, f"± {radius:g}", va="center")
        axes.text(bound * 1.4, frozen, f"{cost:.2g} nats", va="center")
    axes.plot([0, 0], [-0.45, 6.45], color=INK, linewidth=1)
    axes.text(bound * 1.04, -0.8, "may move by", va="center", color=GREY)
    axes.text(bound * 1.4, -0.8, "costs, at its edge", va="center", color=GREY)
    axes.set(xlim=(-bound * 1.02, bound * 1.75), ylim=(6.6, -1.1), yticks=range(7), xticks=[-4, -2, 0, 2, 4])
    axes.set_yticklabels(["no bit frozen", "1 bit", *(f"{k} bits" for k in range(2, 7))])
    axes.set_xlabel("change of the weight since the last task", loc="left")
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(length=0)
    return figure


class Trained(NamedTuple):
    """What a network of digits 0 to 4 has lost, and what it has learned, after digits 5 to 9."""

    lost: Tensor  # KL divergence of each old test sample, nats
    old: float  # share of old test samples that are still right
    new: float


def learn(tolerance: float | None, seed: int) -> Trained:
    """Digits 0 to 4, then 5 to 9 with a head of their own. None: plain fine-tuning."""
    torch.manual_seed(seed)
    images, labels = load_digits()
    x, test, later = images.flatten(1).float() / 16, torch.arange(len(labels)) % 3 == 0, labels // 5
    backbone = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    heads = nn.ModuleList(nn.Linear(64, 5) for _ in range(2))
    blip = BLIP(nn.ModuleList([backbone, heads]), watch=backbone, tolerance=tolerance or NATS)
    attachment = blip.attach() if tolerance else None

    def logits(task: int, batch: Tensor) -> Tensor:
        return heads[task](backbone(batch))

    def right(task: int) -> float:
        mine = test & (later == task)
        return (logits(task, x[mine]).argmax(1) == labels[mine] % 5).float().mean().item()

    for task in range(2):
        mine = ~test & (later == task)
        optimizer = torch.optim.SGD([*backbone.parameters(), *heads[task].parameters()], lr=0.1)
        for _ in range(30):
            for rows in torch.randperm(int(mine.sum())).split(32):
                optimizer.zero_grad()
                F.cross_entropy(logits(task, x[mine][rows]), labels[mine][rows] % 5).backward()
                optimizer.step()
        if task == 0:
            before = logits(0, x[test & (later == 0)]).log_softmax(1).detach()
        if tolerance:
            blip.consolidate([x[mine]], forward=lambda batch, task=task: logits(task, batch), labels="exact")
    if attachment:
        attachment.remove()
    with torch.no_grad():
        after = logits(0, x[test & (later == 0)]).log_softmax(1)
        return Trained((before.exp() * (before - after)).sum(1), right(0), right(1))


def tolerance() -> Figure:
    figure = Figure(figsize=(9.2, 3.1))
    curve, samples = figure.subplots(1, 2)
    nats = torch.linspace(0, 1, 200)
    curve.plot(nats, (-nats).exp(), color=GREY)
    for value, (right, up) in {0.01: (4, 9), 0.05: (9, 1), 0.2: (8, 4), 0.7: (-6, 9)}.items():
        share = math.exp(-value)
        curve.plot(value, share, "o", color=BLUE if value == NATS else INK, markersize=8 if value == NATS else 5)
        default = ", the default" if value == NATS else ""
        label = f"{value:g} nats{default}: {share:.0%} is left"
        curve.annotate(
            label, (value, share), (right, up), textcoords="offset points", color=BLUE if value == NATS else INK
        )
    curve.set(xlim=(-0.02, 1.05), ylim=(0, 1.12), yticks=[0, 0.5, 1], xlabel="loss, nats a sample")
    curve.set_yticklabels(["0", "half", "all"])
    curve.set_title("1: of the probability of an answer", loc="left")
    found = learn(NATS, seed=0)
    losses = found.lost.sort(descending=True).values
    samples.bar(range(len(losses)), losses.tolist(), width=1.0, color=SKY)
    mean = losses.mean().item()
    samples.axhline(mean, color=BLUE)
    samples.axhline(NATS, color=INK, linestyle="--")
    samples.text(len(losses), mean, f"mean: {mean:.3f}", ha="right", va="bottom", color=BLUE)
    samples.text(len(losses), NATS, f"allowed on average: {NATS:g}", ha="right", va="bottom")
    samples.set(
        xlabel=f"{len(losses)} old test samples, sorted", ylabel="nats that each has lost", xlim=(-1, len(losses))
    )
    samples.set_title("2: a mean, not a promise for each sample", loc="left")
    return figure


def knob() -> Figure:
    figure = Figure(figsize=(9.2, 3.1))
    panels = figure.subplots(1, 3)
    found = {value: [learn(value, seed) for seed in SEEDS] for value in TOLERANCES}
    plain = [learn(None, seed) for seed in SEEDS]
    measures: list[tuple[str, Callable[[Trained], float]]] = [
        ("old digits: nats lost", lambda run: run.lost.mean().item()),
        ("old digits: still right, %", lambda run: 100 * run.old),
        ("new digits: right, %", lambda run: 100 * run.new),
    ]
    for axes, (title, measure) in zip(panels, measures, strict=True):
        values = [[measure(run) for run in runs] for runs in found.values()]
        axes.plot(TOLERANCES, [sum(v) / len(v) for v in values], color=BLUE, marker="o", linewidth=1.4)
        for k, seed_values in enumerate(zip(*values, strict=True)):
            axes.plot(TOLERANCES, seed_values, "o", color=BLUE, markersize=3, alpha=0.5, label=None if k else "a seed")
        level = sum(map(measure, plain)) / len(plain)
        axes.axhline(level, color=ORANGE, linestyle="--")
        axes.set(xscale="log", xlabel="tolerance, nats a sample", title=title)
        axes.set_xticks(TOLERANCES, [f"{value:g}" for value in TOLERANCES])
        axes.minorticks_off()
        axes.axvline(NATS, color=PALE, zorder=0, linewidth=5)
        below = title.startswith("new")
        axes.text(
            TOLERANCES[-1 if below else 0],
            level,
            "fine-tuning",
            color=ORANGE,
            ha="right" if below else "left",
            va="top" if below else "bottom",
        )
    panels[0].plot(TOLERANCES, TOLERANCES, color=GREY, linestyle=":")
    panels[0].set(yscale="log")
    panels[0].minorticks_off()
    panels[0].set_yticks([0.0001, 0.001, 0.01, 0.1, 1], ["0.0001", "0.001", "0.01", "0.1", "1"])
    panels[0].text(0.35, 0.8, "allowed", color=GREY, ha="right")
    return figure


PICTURES = {"directions": directions, "bits": bits, "tolerance": tolerance, "knob": knob}


def main(folder: Path = HERE / "images") -> None:
    torch.set_num_threads(1)
    with matplotlib.rc_context(STYLE):
        for name, draw in PICTURES.items():
            draw().savefig(folder / f"method_{name}.svg", facecolor="white", metadata={"Date": None})


if __name__ == "__main__":
    main()
