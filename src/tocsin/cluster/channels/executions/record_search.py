"""Finds the new records on which a channel's query fails, by bisection: tries parts, and then parts of the parts that
fail.

The runs on parts only show whether a part fails. The results come from one run over all remaining records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tocsin.cluster.channels.executions.commit_range import CommitRange, folder_of
from tocsin.cluster.channels.executions.limits import SearchLimits
from tocsin.pipeline.channels.interests import Ids, InterestTable
from tocsin.pipeline.channels.run_query import ExecutionResults
from tocsin.rules.model.cursors import InterestId
from tocsin.wire.errors import StatementError

_E = TypeVar("_E", bound=Exception)
_T = TypeVar("_T")

NewRowsByFolder = Mapping[str, pa.Table]
"""New rows by dataset folder. The query reads all new rows of a dataset that is not in the mapping."""


@dataclass(frozen=True, slots=True)
class PoisonRecord:
    """A record on which the channel's query fails, for all interests or for one. If the interest is at fault and not a
    record, `dataset` is "" and `key` has the interest's id."""

    dataset: str
    key: Sequence[str]
    reason: str
    interest: InterestId | None = None
    known: bool = False  # an earlier execution found it, and later executions leave it out


@dataclass(frozen=True, slots=True)
class FailingRecord:
    """A new record on which the query fails, by its position in the new rows of its dataset, with the error."""

    folder: str
    index: int
    reason: str


class SearchedExecution(Protocol):
    """The execution whose query fails."""

    @property
    def reading(self) -> CommitRange: ...

    @property
    def interests(self) -> InterestTable: ...

    def rows_of(self, folder: str) -> pa.Table:
        """Returns the new rows of a dataset."""

    def run(self, part: NewRowsByFolder, among: Ids | None) -> ExecutionResults:
        """Runs the query for some new rows, and for all interests or some. Raises UnavailableError if the channel was
        stopped."""


class RecordSearch:
    """The search for failing records in one execution, and the runs that it takes."""

    def __init__(self, execution: SearchedExecution, limits: SearchLimits) -> None:
        self._execution = execution
        self._limits = limits
        folders = {folder_of(scan) for scan in execution.reading.query.scans if scan.new}
        self.rows = {folder: execution.rows_of(folder) for folder in sorted(folders)}
        self.no_rows = {folder: rows.slice(0, 0) for folder, rows in self.rows.items()}
        self.count = sum(table.num_rows for table in self.rows.values())
        self.runs = 0

    def outcome(self, part: NewRowsByFolder, ids: Ids) -> ExecutionResults | StatementError:
        self.runs += 1
        try:
            return self._execution.run(part, ids)
        except StatementError as error:
            return error

    def failure(self, part: NewRowsByFolder, ids: Ids) -> StatementError | None:
        outcome = self.outcome(part, ids)
        return outcome if isinstance(outcome, StatementError) else None

    def without_records(self, first: StatementError, ids: Ids) -> tuple[ExecutionResults, list[FailingRecord]]:
        """Returns the results of these interests without the records on which the query fails for them, and those
        records."""
        bad_records: list[FailingRecord] = []
        for _ in range(self._limits.rounds):
            rows = self.rows_without(bad_records)
            reasons_by_folder = self._poison_in(rows, first, ids)
            if not reasons_by_folder:
                raise first
            for folder, reasons in reasons_by_folder.items():
                remaining = _stays(self.rows[folder], folder, bad_records)
                bad_records += [
                    FailingRecord(folder, int(remaining[position]), reason) for position, reason in reasons.items()
                ]
            outcome = self.outcome(self.rows_without(bad_records), ids)
            if isinstance(outcome, ExecutionResults):
                return outcome, bad_records
            first = outcome
        raise first

    def rows_without(self, bad: Sequence[FailingRecord]) -> NewRowsByFolder:
        remaining_rows: dict[str, pa.Table] = {}
        for folder, rows in self.rows.items():
            positions = _stays(rows, folder, bad)
            # pyarrow cannot `take` zero rows of a struct column.
            remaining_rows[folder] = rows.take(pa.array(positions)) if len(positions) else rows.slice(0, 0)
        return remaining_rows

    def name_records(self, bad: Sequence[FailingRecord]) -> list[PoisonRecord]:
        reading = self._execution.reading
        return [
            PoisonRecord(*reading.identity_of(record.folder, self.rows[record.folder], record.index), record.reason)
            for record in bad
        ]

    def _poison_in(self, rows: NewRowsByFolder, first: StatementError, ids: Ids) -> dict[str, dict[int, str]]:
        """Returns, per dataset, the positions of the records on which the query fails, with the errors."""
        if self.failure(self.no_rows, ids) is not None:
            raise first
        reasons_by_folder = {folder: self._among(folder, rows, self.no_rows, first, ids) for folder in rows}
        if not any(reasons_by_folder.values()) and len(rows) > 1:
            # The query fails only when it combines records of several datasets, so blame those of the largest.
            largest = max(rows, key=lambda folder: rows[folder].num_rows)
            reasons_by_folder = {largest: self._among(largest, rows, rows, first, ids)}
        return {folder: reasons for folder, reasons in reasons_by_folder.items() if reasons}

    def _among(
        self, folder: str, rows: NewRowsByFolder, others: NewRowsByFolder, first: StatementError, ids: Ids
    ) -> dict[int, str]:
        own_rows = rows[folder]

        def failure(begin: int, end: int) -> StatementError | None:
            return self.failure({**others, folder: own_rows.slice(begin, end - begin)}, ids) if begin < end else None

        count = own_rows.num_rows
        if failure(0, count) is None:
            return {}
        if count > self._limits.sample and all(
            failure(position, position + 1) is not None for position in spread(range(count), self._limits.sample)
        ):
            raise first
        errors = find_failing(count, failure, pieces=self._limits.pieces)
        return {position: error.message for position, error in errors.items()}


def _stays(rows: pa.Table, folder: str, bad: Sequence[FailingRecord]) -> npt.NDArray[np.int64]:
    """Returns the positions of the rows that are not bad."""
    return np.setdiff1d(np.arange(rows.num_rows), [record.index for record in bad if record.folder == folder])


def find_failing(
    count: int,
    failure: Callable[[int, int], _E | None],
    most: float = math.inf,
    over: Callable[[], bool] = lambda: False,
    *,
    pieces: int = SearchLimits().pieces,
) -> dict[int, _E]:
    """Bisects a range, with more than two pieces at each step, and returns the positions that fail by themselves, with
    their errors, in order. The caller knows that the whole range fails. Returns only some of them if there are more
    than `most`, or if `over` says that the search must end."""
    errors: dict[int, _E] = {}
    suspects = [(0, count)] if count else []
    while suspects and len(errors) <= most and not over():
        begin, end = suspects.pop()
        if begin + 1 == end:
            error = failure(begin, end)
            if error is not None:
                errors[begin] = error
            continue
        size = -(-(end - begin) // pieces)
        has_failed_part = False
        for first in range(begin, end, size):
            part = (first, min(first + size, end))
            if part[1] == end and not has_failed_part:
                # The other parts passed, so the last part must fail. Test its pieces at once; if the failure needs
                # several items together, no piece fails.
                suspects.append(part)
                continue
            error = failure(*part)
            if error is None:
                continue
            has_failed_part = True
            if part[0] + 1 == part[1]:
                errors[first] = error
            else:
                suspects.append(part)
    return dict(sorted(errors.items()))


def spread(all_: Sequence[_T], count: int) -> list[_T]:
    """Returns `count` items, or all if there are fewer, spread evenly over the sequence."""
    total = len(all_)
    return [all_[position] for position in sorted({total * i // count for i in range(count)})] if total else []
