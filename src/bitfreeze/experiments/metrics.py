"""Metrics of the accuracy matrix A: A[t][u] is the accuracy (percent) on task u after learning task t."""

from collections.abc import Sequence

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
