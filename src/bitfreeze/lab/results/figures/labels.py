"""Labels beside marks: where each stands free of the marks, of the other labels and of the edge."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import cos, hypot, pi, sin
from typing import Any

from .style import INK

SIZE = 8.0  # of letters, in points
NEAR, FAR = 7.0, 90.0  # distance of a label from its mark, in points
MARK = 4.0  # half the width of a mark, in points
TO_MARK = {"arrowstyle": "-", "color": INK, "linewidth": 0.5, "shrinkA": 1, "shrinkB": 4}  # the line to a far mark
OUTSIDE = 4.0  # how much worse it is to leave the panel than to cover something


@dataclass(frozen=True)
class Box:
    """A rectangle, in points."""

    left: float
    bottom: float
    right: float
    top: float

    def shared(self, other: "Box") -> float:
        """The area that two rectangles share."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.top, other.top) - max(self.bottom, other.bottom)
        return width * height if width > 0 and height > 0 else 0.0

    @property
    def area(self) -> float:
        return (self.right - self.left) * (self.top - self.bottom)


Point = tuple[float, float]


def label_marks(
    axes: Any,
    marks: Sequence[Point],
    labels: Sequence[str],
    lines: Sequence[tuple[Point, Point]],
    colours: Sequence[str] | None = None,
) -> None:
    """Write a label beside each mark, with a thin line to it where there is no room close by.

    The axes must have their final place and limits: no layout may move them later. Labels keep clear of ``lines``,
    which are level or upright.
    """
    scale = 72 / axes.figure.dpi

    def in_points(points: Sequence[Point]) -> list[Point]:
        return [(scale * x, scale * y) for x, y in axes.transData.transform(points)]

    places = in_points(marks)
    edge = axes.get_window_extent()
    panel = Box(scale * edge.x0, scale * edge.y0, scale * edge.x1, scale * edge.y1)
    sizes = [(0.6 * SIZE * len(label) + 2, 1.3 * SIZE) for label in labels]
    strokes = [Box(x - 1, y - 1, u + 1, v + 1) for (x, y), (u, v) in map(in_points, lines)]
    boxes = arranged(places, sizes, panel, strokes)
    for mark, place, box, label, colour in zip(
        marks, places, boxes, labels, colours or [INK] * len(marks), strict=True
    ):
        middle = ((box.left + box.right) / 2 - place[0], (box.bottom + box.top) / 2 - place[1])
        far = _gap(place, box) > NEAR + 3
        axes.annotate(
            label, mark, middle, textcoords="offset points", ha="center", va="center", fontsize=SIZE, color=colour,
            zorder=5, arrowprops=TO_MARK if far else None,
        )  # fmt: skip


def arranged(
    places: Sequence[Point], sizes: Sequence[tuple[float, float]], panel: Box, others: Sequence[Box] = ()
) -> list[Box]:
    """A box of each size near each place: those in the thick of others choose last, because they go far anyway."""
    marks = [Box(x - MARK, y - MARK, x + MARK, y + MARK) for x, y in places]
    crowd = [sum(hypot(x - u, y - v) < 60 for u, v in places) for x, y in places]
    found: dict[int, Box] = {}
    for k in sorted(range(len(places)), key=lambda k: crowd[k]):
        taken = [*marks, *others, *found.values()]
        found[k] = min(_candidates(places[k], sizes[k]), key=lambda choice: _harm(choice, taken, panel))[1]
    return [found[k] for k in range(len(places))]


def _candidates(place: Point, size: tuple[float, float]) -> Iterable[tuple[float, Box]]:
    """Boxes around a place with the distance of each, to the right of it first."""
    distance = NEAR
    while distance < FAR:
        for step in range(16):
            angle = pi / 8 * (step // 2 + 1) * (1 if step % 2 else -1) if step else 0.0
            x = place[0] + distance * cos(angle) + size[0] / 2 * cos(angle)
            y = place[1] + (distance + size[1] / 2) * sin(angle)
            yield distance, Box(x - size[0] / 2, y - size[1] / 2, x + size[0] / 2, y + size[1] / 2)
        distance *= 1.35


def _harm(choice: tuple[float, Box], taken: Sequence[Box], panel: Box) -> float:
    """What a box covers, in shares of itself, and how far it is."""
    distance, box = choice
    covered = sum(box.shared(other) for other in taken) / box.area
    outside = 1 - box.shared(panel) / box.area
    return covered + OUTSIDE * outside + distance / 1000


def _gap(place: Point, box: Box) -> float:
    across = max(box.left - place[0], place[0] - box.right, 0.0)
    along = max(box.bottom - place[1], place[1] - box.top, 0.0)
    return hypot(across, along)
