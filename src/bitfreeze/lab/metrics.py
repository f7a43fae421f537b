"""Metrics of one run's matrix A, and of several seeds.

A[t][u] is the accuracy (percent), or the mean score, on task u after learning task t.
"""

from collections.abc import Sequence
from statistics import mean, stdev, variance

Matrix = Sequence[Sequence[float]]
Spread = tuple[float, float]  # a mean, and a standard deviation or half an interval

# two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def average_accuracy(matrix: Matrix) -> float:
    """ACC: mean of the last row."""
    return sum(matrix[-1]) / len(matrix[-1])


def backward_transfer(matrix: Matrix, divisor: str = "T-1") -> float:
    """BWT: mean change of the tasks since each was learned. The paper divides by T - 1, the released code by T."""
    changes = [matrix[-1][u] - matrix[u][u] for u in range(len(matrix))]
    count = len(changes) - 1 if divisor == "T-1" else len(changes)
    return sum(changes) / count if count else 0.0


def forgetting(matrix: Matrix) -> float:
    """Mean fall of the earlier tasks, each from its best accuracy so far."""
    last = len(matrix) - 1
    falls = [max(matrix[t][u] for t in range(u, last)) - matrix[last][u] for u in range(last)]
    return sum(falls) / last if last else 0.0


def stability(matrix: Matrix) -> float | None:
    """Mean share of its accuracy when learned that an earlier task has in the end, or None for a single task.

    A task that was learned with an accuracy of 0 has nothing to lose and is left out.
    """
    shares = [matrix[-1][u] / matrix[u][u] for u in range(len(matrix) - 1) if matrix[u][u]]
    return mean(shares) if shares else None


def learning_accuracy(matrix: Matrix) -> float:
    """Mean of the diagonal: the accuracy on each task just after it was learned."""
    return sum(matrix[t][t] for t in range(len(matrix))) / len(matrix)


def is_above(scores: Sequence[float], others: Sequence[float]) -> bool:
    """Whether the mean of ``scores`` is higher than that of ``others`` by more than two standard errors."""
    if len(scores) < 2 or len(others) < 2:
        return False
    error = (variance(scores) / len(scores) + variance(others) / len(others)) ** 0.5
    return bool(mean(scores) - mean(others) > 2 * error)


def share_kept(scores: Matrix, random: Sequence[float], learned: Sequence[bool]) -> float | None:
    """Mean share of a task's score above random play that is left in the end, or None where no task was learned.

    The last task is left out, because nothing came after it.
    """
    last = len(scores) - 1
    shares = [(scores[last][u] - random[u]) / (scores[u][u] - random[u]) for u in range(last) if learned[u]]
    return mean(shares) if shares else None


def normalised(scores: Sequence[float], random: Sequence[float], best: Sequence[float]) -> float:
    """The paper's accumulated normalised reward: summed over tasks, 0 is random play and 1 the best known score."""
    return sum((s - r) / (b - r) if b > r else 0.0 for s, r, b in zip(scores, random, best, strict=True))


def spread(values: Sequence[float]) -> Spread:
    """Mean and standard deviation over seeds. The deviation of a single value is 0."""
    return mean(values), stdev(values) if len(values) > 1 else 0.0


def interval(values: Sequence[float]) -> Spread:
    """Mean of at least two values, and half of its 95 % confidence interval."""
    average, deviation = spread(values)
    return average, _T95[min(len(values) - 1, len(_T95)) - 1] * deviation / len(values) ** 0.5
