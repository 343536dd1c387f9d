"""Logistic regression on columns of a CSV file. Pure but for the reading."""

from __future__ import annotations

import csv
from typing import Any

import numpy as np


def read(path: str, features: list[str], label: str) -> tuple[Any, Any]:
    """Rows by columns, and 0 or 1 for each row."""
    rows, labels = [], []
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            rows.append([float(row[name]) for name in features])
            labels.append(float(row[label]))
    return np.array(rows, dtype=np.float64).reshape(len(rows), len(features)), np.array(labels, dtype=np.float64)


def names(features: str) -> list[str]:
    found = [each.strip() for each in features.split(",") if each.strip()]
    if not found:
        raise ValueError("the configuration names no features")
    return found


def sums(x: Any) -> Any:
    """What scales are computed from: the sum of each column, and of its squares."""
    return np.concatenate([x.sum(axis=0), (x * x).sum(axis=0)])


def scales(count: int, added: Any) -> tuple[Any, Any]:
    """Mean and standard deviation of each column, from the sums of all."""
    first, second = np.split(added / count, 2)
    deviation = np.sqrt(np.maximum(second - first * first, 0.0))
    return first, np.where(deviation > 0, deviation, 1.0)


def train(weights: Any, x: Any, y: Any, steps: int, rate: float) -> Any:
    """`weights`: one for each column, then the constant."""
    x1 = np.hstack([x, np.ones((len(x), 1))])
    for _ in range(steps):
        weights = weights - rate * x1.T @ (chances(weights, x) - y) / len(y)
    return weights


def chances(weights: Any, x: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-(x @ weights[:-1] + weights[-1])))


def quality(weights: Any, x: Any, y: Any) -> tuple[float, float]:
    """Loss and accuracy."""
    p = np.clip(chances(weights, x), 1e-12, 1 - 1e-12)
    loss = -np.mean(y * np.log(p) + (1 - y) * np.log(1 - p))
    return float(loss), float(np.mean((p > 0.5) == (y > 0.5)))
