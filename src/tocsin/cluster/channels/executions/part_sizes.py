"""Decides how large the parts of an execution are, from what has passed and what has failed before.

The measure is the bytes of the results. The number of pairs of interests and records says little: a pair that does not
match takes next to nothing, and a channel's next records may match other interests than the last ones did. Only if a
part fails although its results are few, the number of its pairs counts: then the engine lacked time or memory for the
search itself.

A part that passes tells the bytes of its results at once. A part that fails tells them as soon as all that it held has
passed in smaller parts. So the capacity of the engine lies between two numbers, and the sizes that are tried bring them
together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, Protocol

from tocsin.cluster.channels.executions.limits import PartLimits

# The search for the capacity ends when what failed is at most this multiple of what passed.
_NARROW: Final = 1.5
# Parts aim at less than the most that has passed, because the next interests can have more results than the last.
_MARGIN: Final = 0.85


@dataclass(frozen=True, slots=True)
class ExecutionPart:
    """A range of interests and a range of records, both by position."""

    interests: range
    records: range

    @property
    def pairs(self) -> int:
        return len(self.interests) * len(self.records)

    def contains(self, other: ExecutionPart) -> bool:
        return all(
            outer.start <= inner.start and inner.stop <= outer.stop
            for outer, inner in ((self.interests, other.interests), (self.records, other.records))
        )


@dataclass(slots=True)
class ResultCapacity:
    """The bytes of results that the engine can return at once."""

    passed_bytes: float = 0.0  # the most that has passed
    failed_bytes: float | None = None  # the least that has failed; None: larger parts may be tried
    is_known: bool = False  # whether any part has failed for its results
    is_costly: bool = False  # whether a failure costs a deadline or an engine

    def record_pass(self, size_bytes: float) -> None:
        self.passed_bytes = max(self.passed_bytes, size_bytes)
        if self.failed_bytes is not None:
            self.failed_bytes = max(self.failed_bytes, self.passed_bytes)

    def explains_failure(self, size_bytes: float) -> bool:
        """Returns whether a part with results of this size may have failed because of them."""
        return 2 * size_bytes > self.passed_bytes

    def record_failure(self, size_bytes: float, *, is_costly: bool) -> None:
        self.is_known, self.is_costly = True, is_costly
        if size_bytes <= self.passed_bytes:  # the capacity has become smaller
            self.passed_bytes, self.failed_bytes = size_bytes / 2, size_bytes
        else:
            self.failed_bytes = min(size_bytes, self.failed_bytes or math.inf)

    @property
    def aim_bytes(self) -> float:
        """The size at which the next part aims."""
        if self.failed_bytes is None:
            return 2 * self.passed_bytes
        if self.failed_bytes > _NARROW * self.passed_bytes and not self.is_costly:
            return math.sqrt(self.failed_bytes * self.passed_bytes)
        return _MARGIN * self.passed_bytes


class PartsOutcome(Protocol):
    """What an execution in parts says about the size of parts."""

    @property
    def pairs(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def largest_passed(self) -> int:
        """In pairs."""

    @property
    def is_overworked(self) -> bool:
        """Whether a part failed although it had few results."""

    def has_unexplained_failure(self) -> bool:
        """Returns whether a part failed although nothing in it was set aside: that part was too large."""


@dataclass(slots=True)
class ExecutionSize:
    """What earlier executions of a channel have shown: how large a part passes, and whether one task finds all matches
    quickly."""

    limits: PartLimits = field(default_factory=PartLimits)
    capacity: ResultCapacity = field(default_factory=ResultCapacity)
    bytes_per_pair: float = 0.0  # of the last execution that ran in parts, or could have
    pairs: int | None = None  # the largest part that passes where results are few; None: no such part has failed
    fits_one_task: bool = True
    losses: int = 0  # lost engines while this execution ran as a whole
    slow: set[int] = field(default_factory=set)  # interests that have been set aside, wholly or for some records
    parts: int = 0  # parts run since the channel was started, including failed parts
    _pause: int = 0  # executions until a larger part is tried
    _longest_pause: int = 1

    @property
    def has_needed_parts(self) -> bool:
        return self.capacity.is_known or self.pairs is not None

    def learn(self, made: PartsOutcome) -> None:
        """Adapts the part size after an execution in parts. Larger parts are tried again after a pause, which doubles
        each time that they fail."""
        self._learn_density(made.size_bytes, made.pairs)
        if made.has_unexplained_failure():
            if made.is_overworked:
                self.pairs = made.largest_passed
            self._longest_pause = min(2 * self._longest_pause, self.limits.longest_pause)
            self._pause = self._longest_pause
        else:
            self._learn_success()

    def learn_whole(self, size_bytes: int, pairs: int) -> None:
        """Adapts the part size after an execution that passed as a whole, although an earlier one needed parts."""
        self._learn_density(size_bytes, pairs)
        self.capacity.record_pass(size_bytes)
        self._learn_success()

    def _learn_density(self, size_bytes: int, pairs: int) -> None:
        self.bytes_per_pair = size_bytes / max(1, pairs)

    def _learn_success(self) -> None:
        self._longest_pause = self._longest_pause if self._pause else 1
        self._pause = max(0, self._pause - 1)
        if not self._pause:
            self.capacity.failed_bytes = None
            self.pairs = None if self.pairs is None else 2 * self.pairs

    def fits(self, pairs: int) -> bool:
        """Returns whether this many pairs should pass, if they match as often as those of the last execution."""
        return pairs <= self._pairs_that_fit(math.inf)

    def first_interests(self, interests: int, records: int) -> int:
        """Returns how many interests the first part has."""
        return max(1, min(interests, int(self._pairs_that_fit(interests * records) // max(1, records))))

    def first_records(self, records: int) -> int:
        return max(1, min(records, int(self._pairs_that_fit(records))))

    def most_interests(self, records: int) -> float:
        """Returns the largest number of interests that parts grow to within one execution."""
        return math.inf if self.pairs is None else max(1, self.pairs // max(1, records))

    def _pairs_that_fit(self, otherwise: float) -> float:
        by_work = math.inf if self.pairs is None else self.pairs
        is_bound = self.capacity.is_known and self.bytes_per_pair > 0
        by_results = self.capacity.aim_bytes / self.bytes_per_pair if is_bound else math.inf
        return min(by_work, by_results, otherwise)

    @property
    def loses_engines(self) -> bool:
        """Whether the execution as a whole has lost too many engines for a coincidence."""
        return self.losses >= self.limits.losses


@dataclass(slots=True)
class PartLimit:
    """The size of a part in one dimension. It grows when parts pass, and stays below a size that failed for a while."""

    size: int
    patience: float  # this many parts must pass before a failed size is tried again
    most: float = math.inf
    failed: int | None = None
    passes: int = 0

    def shrink(self, size: int, ways: int, least: int = 1) -> None:
        self.size, self.failed, self.passes = max(least, size // ways, 1), size, 0

    def grow(self) -> bool:
        """Doubles the size if it may. Returns whether it did."""
        return self._grow_to(2 * self.size) if 2 * self.size <= self.most else False

    def adapt(self, size: int, fitting: float) -> None:
        """Adapts the size after a part of this size has passed, if `fitting` of its kind would just fit. It at most
        doubles, and failures at least halve it: so there are hardly more failures than passes."""
        if fitting < self.size:
            self.size = max(1, int(fitting), self.size // 2)
            self.passes += 1
        elif size >= self.size:
            self._grow_to(int(min(2 * self.size, fitting, self.most)))

    def _grow_to(self, size: int) -> bool:
        self.passes += 1
        if self.failed is not None and size >= self.failed:
            if self.passes < self.patience:
                return False
            self.failed = None
        if size <= self.size:
            return False
        self.size = size
        self.passes = 0
        return True
