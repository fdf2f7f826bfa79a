"""Whether a figure grows."""

from __future__ import annotations


def slope(points: list[tuple[float, float]]) -> float:
    """Least-squares slope: units per second."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
