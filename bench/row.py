# SPDX-License-Identifier: Apache-2.0
"""A row of bench/run.py.

A side is a function that measures once and returns {metric: value}. Sides of a row are run in turn,
ours first, so that a change in the machine's speed affects all of them.
"""
import dataclasses
from typing import Callable

OURS = "ddprun"


@dataclasses.dataclass
class Goal:
    """The `metric` of `side` must be at most `limit` (in the metric's unit), or `limit` × the peer's median."""
    metric: str
    limit: float
    peer: str = ""
    side: str = OURS

    def text(self):
        whose = "" if self.side == OURS else f"{self.side} "
        return whose + (f"≤ {self.limit:g} × {self.peer}" if self.peer else f"≤ {self.limit:g}")


@dataclasses.dataclass
class Row:
    name: str
    what: str
    sides: dict[str, Callable[[], dict[str, float]]]
    goals: list[Goal]
    repeats: int = 5
    note: str = ""
