"""Admission policies: each decides by the number of subscribers whether a result enters the cache.

All policies start with a threshold of 0 and admit a result if it has at least as many subscribers as the threshold.
They decide before they learn from the result; only the buffer policy can be set to learn first.
"""

from __future__ import annotations

import math
import re
from typing import Final, Protocol


class Admission(Protocol):
    def admits(self, subscribers: int) -> bool:
        """Decides on the next result and learns from it."""


class _AdmitAll:
    def admits(self, subscribers: int) -> bool:  # noqa: ARG002
        return True


class _AdmitNone:
    def admits(self, subscribers: int) -> bool:  # noqa: ARG002
        return False


class Threshold:
    """The threshold rises by λ·n with every admitted result and falls by μ·n with every refused result."""

    def __init__(self, rise: float = 0.2, fall: float = 0.8) -> None:
        _at_least(0, rise=rise, fall=fall)
        self.rise, self.fall = rise, fall
        self.threshold = 0.0

    def admits(self, subscribers: int) -> bool:
        admitted = self.threshold <= subscribers
        self.threshold += self.rise * subscribers if admitted else -self.fall * subscribers
        return admitted


class Mean:
    """The mean of one batch of results is the threshold for the next batch. Batches do not overlap."""

    def __init__(self, batch: float = 20) -> None:
        if not (math.isfinite(batch) and batch >= 1 and batch == int(batch)):
            raise ValueError(f"mean: a batch is a whole number of results, 1 or more, got {batch:g}")
        self.batch = int(batch)
        self.threshold = 0.0
        self._sum = 0
        self._seen = 0

    def admits(self, subscribers: int) -> bool:
        admitted = self.threshold <= subscribers
        self._sum += subscribers
        self._seen += 1
        if self._seen == self.batch:
            self.threshold = self._sum / self.batch
            self._sum = self._seen = 0
        return admitted


class Buffer:
    """The threshold is γ times the last number of subscribers plus α times the number before it."""

    def __init__(self, last: float = 0.5, before: float = 0.5, *, learns_first: bool = False) -> None:
        _at_least(0, last=last, before=before)
        self.last, self.before = last, before
        self.learns_first = learns_first
        self._recent = (0, 0)

    @property
    def threshold(self) -> float:
        return self.last * self._recent[0] + self.before * self._recent[1]

    def admits(self, subscribers: int) -> bool:
        if self.learns_first:
            self._recent = (subscribers, self._recent[0])
            return self.threshold <= subscribers
        admitted = self.threshold <= subscribers
        self._recent = (subscribers, self._recent[0])
        return admitted


ADMISSION: Final[dict[str, type[Admission]]] = {
    "all": _AdmitAll,
    "none": _AdmitNone,
    "threshold": Threshold,
    "mean": Mean,
    "buffer": Buffer,
}
# How many parameters a policy takes in brackets, as in `threshold(λ, μ)`.
PARAMETERS: Final[dict[str, int]] = {"threshold": 2, "mean": 1, "buffer": 2}
_SPELLED: Final = re.compile(r"\s*([a-z]+)\s*(?:\(([^()]*)\))?\s*")


def admission(text: str, *, learns_first: bool = False) -> Admission:
    """Parses `all`, `none`, `threshold(0.2, 0.8)`, `mean(20)`, `buffer(0.5, 0.5)`; a name alone takes its defaults."""
    match = _SPELLED.fullmatch(text)
    if match is None or match[1] not in ADMISSION:
        raise ValueError(f"no admission policy {text!r}; there are: {', '.join(ADMISSION)}")
    name, parameters = match[1], match[2]
    try:
        numbers = [float(number) for number in parameters.split(",")] if parameters and parameters.strip() else []
    except ValueError:
        raise ValueError(f"{text}: numbers stand in the brackets") from None
    arity = PARAMETERS.get(name, 0)
    if numbers and len(numbers) != arity:
        raise ValueError(f"{text}: {name} takes {arity or 'no'} parameters, got {len(numbers)}")
    policy = ADMISSION[name](*numbers)
    if isinstance(policy, Buffer):
        policy.learns_first = learns_first
    return policy


def _at_least(least: float, **values: float) -> None:
    for name, value in values.items():
        if not value >= least or value == float("inf"):
            raise ValueError(f"{name}: must be at least {least:g} and finite, got {value:g}")
