"""Metrics of the matrix A: A[t][u] is the accuracy (percent), or the mean score, on task u after learning task t."""

from collections.abc import Sequence
from statistics import mean, variance

Matrix = Sequence[Sequence[float]]


def average_accuracy(matrix: Matrix) -> float:
    """ACC: the mean of the last row."""
    return sum(matrix[-1]) / len(matrix[-1])


def backward_transfer(matrix: Matrix, divisor: str = "T-1") -> float:
    """BWT: the mean change of each task since it was learned. The paper divides by T - 1, the released code by T."""
    changes = [matrix[-1][u] - matrix[u][u] for u in range(len(matrix))]
    count = len(changes) - 1 if divisor == "T-1" else len(changes)
    return sum(changes) / count if count else 0.0


def forgetting(matrix: Matrix) -> float:
    """The mean fall of each earlier task from the best accuracy it ever had."""
    last = len(matrix) - 1
    falls = [max(matrix[t][u] for t in range(u, last)) - matrix[last][u] for u in range(last)]
    return sum(falls) / last if last else 0.0


def learning_accuracy(matrix: Matrix) -> float:
    """The mean of the diagonal: how well each task was learned when it came."""
    return sum(matrix[t][t] for t in range(len(matrix))) / len(matrix)


def is_above(scores: Sequence[float], others: Sequence[float]) -> bool:
    """Whether the mean of ``scores`` is higher than that of ``others`` by more than two standard errors."""
    if len(scores) < 2 or len(others) < 2:
        return False
    error = (variance(scores) / len(scores) + variance(others) / len(others)) ** 0.5
    return bool(mean(scores) - mean(others) > 2 * error)


def share_kept(scores: Matrix, random: Sequence[float], learned: Sequence[bool]) -> float | None:
    """Of the score above random play that a task had when it was learned, the share that is left in the end: the mean
    over tasks that were learned. The last one has had no time to be forgotten and is left out."""
    last = len(scores) - 1
    shares = [(scores[last][u] - random[u]) / (scores[u][u] - random[u]) for u in range(last) if learned[u]]
    return mean(shares) if shares else None


def normalised(scores: Sequence[float], random: Sequence[float], best: Sequence[float]) -> float:
    """The paper's accumulated normalised reward: for each task 0 is random play and 1 the best known; their sum."""
    return sum((s - r) / (b - r) if b > r else 0.0 for s, r, b in zip(scores, random, best, strict=True))
