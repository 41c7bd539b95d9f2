"""Finds the records and interests on which a channel's query fails, and runs the query without them.

The search runs the query on parts of the input, names what fails and sets it aside. All other interests get their
results. The cause may be a record, or an interest with parameters that the query cannot handle; then only that interest
is left out. A record is poison for everybody only if it fails with interests that are not at fault themselves, so the
search checks the interests first.

The results come from one run over all remaining records. The runs on parts only show whether a part fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from sqlglot import exp

from tocsin.cluster.catalog.entries import DatasetEntry
from tocsin.cluster.channels.executions.bisection import find_failing, spread
from tocsin.cluster.channels.executions.execution_snapshot import ExecutionSnapshot, folder_of
from tocsin.language.translate.spark_text import render
from tocsin.pipeline.channels.interests import Ids, InterestTable
from tocsin.pipeline.channels.run_query import ExecutionResults, together
from tocsin.rules.model.columns import COMMIT, physical
from tocsin.wire.errors import CapacityError, StatementError, UnavailableError

# Sample size: this many single records or interests, spread evenly, are tried first. If there are more records than
# this and every sampled record fails, the query itself is at fault.
SAMPLE: Final = 8
# Sample size when no interest is known to have worked before: only if all of these fail does the query count as failing
# with every interest.
WIDE_SAMPLE: Final = 32
REPRESENTATIVES: Final = 3  # records among which the search looks for a harmless one
_ROUNDS: Final = 4  # rounds of the record search: removing some poison records can reveal others
# Up to this many failing interests, the search finds the failing records of each. Above it, a few bad records may be
# the cause instead.
FEW_INTERESTS: Final = 16
# Up to FEW_RECORDS poison records, the search finds the interests that fail on each: at most MOST_ON_A_RECORD interests
# per record and MOST_RUNS runs for all records. The limits keep the search short, because no results are delivered
# before its end.
FEW_RECORDS: Final = 4
MOST_ON_A_RECORD: Final = 64
MOST_RUNS: Final = 160
# One search sets aside at most this many interests; the retry finds the others.
MOST_INTERESTS: Final = 512
_ALL: Final = 1 << 62

NewRowsByFolder = Mapping[str, pa.Table]
"""New rows by dataset folder. The query reads all new rows of a dataset that is not in the mapping."""


@dataclass(frozen=True, slots=True)
class PoisonRecord:
    """A record on which the channel's query fails, for all interests or for one. If the interest is at fault and not a
    record, `dataset` is "" and `key` has the interest's id."""

    dataset: str
    key: Sequence[str]
    reason: str
    interest: int | None = None
    known: bool = False  # an earlier execution found it, and later executions leave it out


@dataclass(frozen=True, slots=True)
class _Bad:
    """A new record on which the query fails, by its position in the new rows of its dataset, with the error."""

    folder: str
    place: int
    reason: str


Run = Callable[[NewRowsByFolder, Ids | None], ExecutionResults]
"""Runs the query for some new rows, and for all interests or some."""


class PoisonSearch:
    """One search within one execution. The interests in `left` take no part in it."""

    def __init__(  # noqa: PLR0917
        self,
        reading: ExecutionSnapshot,
        interests: InterestTable,
        run: Run,
        rows_of: Callable[[str], pa.Table],
        is_stopped: Callable[[], bool],
        left: Sequence[int],
    ) -> None:
        self._reading = reading
        self._interests = interests
        self._run = run
        self._is_stopped = is_stopped
        self._left = set(left)
        self._runs = 0
        folders = {folder_of(scan) for scan in reading.query.scans if scan.new}
        self._rows = {folder: rows_of(folder) for folder in sorted(folders)}
        self._nothing = {folder: rows.slice(0, 0) for folder, rows in self._rows.items()}

    def without_culprits(self, first: StatementError) -> tuple[ExecutionResults, list[PoisonRecord]]:
        """Returns the results without the poison records and bad interests, and names these. Raises the query's error
        if the search finds no cause."""
        aside: dict[int, StatementError] = {}
        outcome: ExecutionResults | StatementError = first
        while isinstance(outcome, StatementError):
            bad_interests = self._blamed(first)
            if not bad_interests:
                break
            aside |= bad_interests
            self._left |= bad_interests.keys()
            outcome = self._outcome({}, self._rest())
        poison_records: list[PoisonRecord] = []
        if isinstance(outcome, StatementError):
            outcome, records = self._without_records(outcome, self._rest())
            outcome, poison_records = self._for_whom(outcome, records)
        parts = [outcome]
        for group in [sorted(aside)] if len(aside) > FEW_INTERESTS else [[interest] for interest in sorted(aside)]:
            partial = self._partly(group) if group and _count(self._rows) > 1 else None
            if partial is None:
                for interest in group:
                    self._interests.strike(interest, aside[interest].message)
                    poison_records.append(PoisonRecord("", [str(interest)], aside[interest].message, interest))
                continue
            parts.append(partial[0])
            group_records = self._named(partial[1])
            for interest in group:
                self._interests.doubt(interest)
                poison_records += [replace(record, interest=interest) for record in group_records]
        return together(parts), poison_records

    def _rest(self) -> Ids:
        return Ids(without=tuple(sorted(self._left)))

    # ------------------------------------------------------------ interests

    def _partly(self, group: Sequence[int]) -> tuple[ExecutionResults, list[_Bad]] | None:
        """Returns the results of these interests without the records on which one of them fails, and those records.
        Returns None if every record fails."""
        alone = Ids(only=tuple(group))
        outcome = self._outcome({}, alone)
        if isinstance(outcome, ExecutionResults):
            return outcome, []
        try:
            results, records = self._without_records(outcome, alone)
        except StatementError:
            return None
        return (results, records) if len(records) < _count(self._rows) else None

    def _for_whom(
        self, found: ExecutionResults, records: Sequence[_Bad]
    ) -> tuple[ExecutionResults, list[PoisonRecord]]:
        """Extends the results, which lack these records, by what the records give to interests that do not fail on
        them. Returns the results and the named poison records."""
        ids = sorted(self._interests.identities() - self._left)
        failures: dict[int, dict[int, str]] = {}  # interest → number of a record on which it fails → error
        for_all = set(range(len(records)))
        if len(ids) >= 2 and len(records) <= FEW_RECORDS:
            last = self._runs + MOST_RUNS
            for number, record in enumerate(records):
                errors = self._failing_on(record, ids, last) if self._runs < last else {}
                if errors:
                    for_all.discard(number)
                for interest, error in errors.items():
                    failures.setdefault(interest, {})[number] = error.message
        groups: dict[frozenset[int], list[int]] = {}
        for interest, reasons in sorted(failures.items()):
            groups.setdefault(frozenset(reasons), []).append(interest)
        parts: list[ExecutionResults] = []
        if groups:
            other_ids = Ids(without=tuple(sorted({*self._left, *failures})))
            for without, among in [
                (frozenset[int](), other_ids),
                *((k, Ids(only=tuple(v))) for k, v in groups.items()),
            ]:
                left_out = [records[number] for number in sorted(for_all | without)]
                outcome = self._outcome(self._rows_without(left_out), among)
                if isinstance(outcome, StatementError):
                    return found, self._named(records)
                parts.append(outcome)
        poison_records = self._named([records[number] for number in sorted(for_all)])
        for interest, reasons in sorted(failures.items()):
            own_records = [replace(records[number], reason=reason) for number, reason in sorted(reasons.items())]
            poison_records += [replace(poison_record, interest=interest) for poison_record in self._named(own_records)]
        return (together(parts) if parts else found), poison_records

    def _failing_on(self, record: _Bad, ids: Sequence[int], last: int) -> dict[int, StatementError]:
        """Returns the interests that fail on this record, with their errors. Returns nothing if all interests may fail,
        or if the search would take too long; then the record is poison for everybody."""
        part = {**self._nothing, record.folder: self._rows[record.folder].slice(record.place, 1)}
        outcomes = {interest: self._outcome(part, Ids(interest, interest)) for interest in spread(ids, SAMPLE)}
        if all(isinstance(outcome, StatementError) for outcome in outcomes.values()):
            return {}
        outcomes |= {
            interest: self._outcome(part, Ids(interest, interest))
            for interest in spread(ids, WIDE_SAMPLE)
            if interest not in outcomes
        }
        if not any(isinstance(outcome, ExecutionResults) and len(outcome) for outcome in outcomes.values()):
            return {}  # no interest is known that would lose a result
        known_errors = {
            interest: outcome if isinstance(outcome, StatementError) else None for interest, outcome in outcomes.items()
        }
        failures = sum(error is not None for error in known_errors.values())
        if failures * len(ids) > 2 * MOST_ON_A_RECORD * len(known_errors):
            return {}  # the sample predicts far too many failing interests
        failing_interests = self._failing(
            ids, part, StatementError(record.reason), MOST_ON_A_RECORD, last, known_errors
        )
        return {} if len(failing_interests) > MOST_ON_A_RECORD or self._runs >= last else failing_interests

    def _blamed(self, first: StatementError) -> dict[int, StatementError]:
        """Returns the interests that are at fault, with their errors: the query fails with them and not with others.
        Returns nothing if the records are the cause."""
        ids = sorted(self._interests.identities() - self._left)
        if len(ids) < 2:
            return {}
        suspects = [interest for interest in ids if interest in self._interests.suspects]
        if 0 < len(suspects) < len(ids):
            without = Ids(without=tuple(sorted({*self._left, *suspects})))
            if self._failure({}, without) is None:
                return self._failing(suspects, {}, first)
        sample = spread(ids, SAMPLE)
        errors = {interest: self._failure({}, Ids(interest, interest)) for interest in sample}
        failing_interests = {interest: error for interest, error in errors.items() if error is not None}
        if len(failing_interests) < len(sample):
            if len(sample) == len(ids):
                return failing_interests
            last = self._runs + MOST_RUNS // 2
            failing_interests = self._failing(ids, {}, first, FEW_INTERESTS, last)
            if len(failing_interests) <= FEW_INTERESTS and self._runs < last:
                return failing_interests
            if all(map(self._interests.has_worked, failing_interests)) or self._some_record_passes():
                return {}
            return self._failing(ids, {}, first)
        # Every sampled interest fails.
        if self._some_record_passes():
            return {}
        part = self._harmless(ids, sample)
        return {} if part is None else self._failing(ids, part, first)

    def _failing(  # noqa: PLR0917
        self,
        ids: Sequence[int],
        part: NewRowsByFolder,
        first: StatementError,
        most: int | None = None,
        last: int = _ALL,
        known: Mapping[int, StatementError | None] = MappingProxyType({}),
    ) -> dict[int, StatementError]:
        """Bisects the interests and returns those that fail, with their errors. The search stops when the number of
        runs reaches `last`. `known` has the outcomes of interests that were already tried alone."""
        without = tuple(sorted(self._left))

        def failure(begin: int, end: int) -> StatementError | None:
            if begin + 1 == end and ids[begin] in known:
                return known[ids[begin]]
            return self._failure(part, Ids(ids[begin], ids[end - 1], without))

        errors = find_failing(len(ids), failure, MOST_INTERESTS if most is None else most, lambda: self._runs >= last)
        failing_interests = {ids[position]: error for position, error in errors.items()}
        if most is None and len(failing_interests) > MOST_INTERESTS:
            # The retry leaves these interests out and finds the others.
            for interest, error in failing_interests.items():
                self._interests.strike(interest, error.message)
            raise first
        return failing_interests

    def _some_record_passes(self) -> bool:
        """Returns whether a sampled record passes with all interests: then the records that fail are at fault."""
        if _count(self._rows) < 2:
            return False
        return any(self._failure(part, self._rest()) is None for part in self._singles(SAMPLE))

    def _harmless(self, ids: Sequence[int], sample: Sequence[int]) -> NewRowsByFolder | None:
        """Returns a record with which at least one interest passes."""
        # The sample was already tried with this single record.
        tried = set(sample) if _count(self._rows) == 1 else set()
        have_worked = all(map(self._interests.has_worked, sample))
        for number, part in enumerate(self._singles(REPRESENTATIVES)):
            for interest in spread(ids, SAMPLE if have_worked or number else WIDE_SAMPLE):
                if interest not in tried and self._failure(part, Ids(interest, interest)) is None:
                    return part
        return None

    def _singles(self, count: int) -> Iterator[NewRowsByFolder]:
        """Yields single records, to be tried alone, of the largest dataset whose new rows fail without rows of other
        datasets. If there is none, yields single records of the largest dataset, each with all rows of the others."""
        filled = sorted(
            (folder for folder in self._rows if self._rows[folder].num_rows), key=lambda one: -len(self._rows[one])
        )
        failed = [
            folder for folder in filled if self._failure({**self._nothing, folder: self._rows[folder]}, self._rest())
        ]
        other_rows = self._nothing if failed else self._rows
        for folder in (failed or filled)[:1]:
            for position in spread(range(self._rows[folder].num_rows), count):
                yield {**other_rows, folder: self._rows[folder].slice(position, 1)}

    # ------------------------------------------------------------ records

    def _without_records(self, first: StatementError, ids: Ids) -> tuple[ExecutionResults, list[_Bad]]:
        """Returns the results of these interests without the records on which the query fails for them, and those
        records."""
        bad_records: list[_Bad] = []
        for _ in range(_ROUNDS):
            rows = self._rows_without(bad_records)
            reasons_by_folder = self._culprits(rows, first, ids)
            if not reasons_by_folder:
                raise first
            for folder, reasons in reasons_by_folder.items():
                remaining = _stays(self._rows[folder], folder, bad_records)
                bad_records += [_Bad(folder, int(remaining[position]), reason) for position, reason in reasons.items()]
            outcome = self._outcome(self._rows_without(bad_records), ids)
            if isinstance(outcome, ExecutionResults):
                return outcome, bad_records
            first = outcome
        raise first

    def _rows_without(self, bad: Sequence[_Bad]) -> NewRowsByFolder:
        remaining_rows: dict[str, pa.Table] = {}
        for folder, rows in self._rows.items():
            positions = _stays(rows, folder, bad)
            # pyarrow cannot `take` zero rows of a struct column.
            remaining_rows[folder] = rows.take(pa.array(positions)) if len(positions) else rows.slice(0, 0)
        return remaining_rows

    def _named(self, bad: Sequence[_Bad]) -> list[PoisonRecord]:
        return [
            PoisonRecord(
                *identity_of(self._reading.entries[record.folder], self._rows[record.folder], record.place),
                record.reason,
            )
            for record in bad
        ]

    def _culprits(self, rows: NewRowsByFolder, first: StatementError, ids: Ids) -> dict[str, dict[int, str]]:
        """Returns, per dataset, the positions of the records on which the query fails, with the errors."""
        if self._failure(self._nothing, ids) is not None:
            raise first
        reasons_by_folder = {folder: self._among(folder, rows, self._nothing, first, ids) for folder in rows}
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
            return self._failure({**others, folder: own_rows.slice(begin, end - begin)}, ids) if begin < end else None

        count = own_rows.num_rows
        if failure(0, count) is None:
            return {}
        if count > SAMPLE and all(
            failure(position, position + 1) is not None for position in spread(range(count), SAMPLE)
        ):
            raise first
        return {position: error.message for position, error in find_failing(count, failure, _ALL).items()}

    def _failure(self, part: NewRowsByFolder, ids: Ids) -> StatementError | None:
        outcome = self._outcome(part, ids)
        return outcome if isinstance(outcome, StatementError) else None

    def _outcome(self, part: NewRowsByFolder, ids: Ids) -> ExecutionResults | StatementError:
        if self._is_stopped():
            raise UnavailableError("the channel was stopped")
        self._runs += 1
        try:
            return self._run(part, ids)
        except StatementError as error:
            return error


def _count(rows: NewRowsByFolder) -> int:
    return sum(table.num_rows for table in rows.values())


def collect_new_rows(reading: ExecutionSnapshot, folder: str) -> pa.Table:
    """Returns the new rows of a dataset."""
    rows = reading.new_rows(folder)
    if rows is None:
        snapshot = reading.rows_in_files(folder)
        view = reading.engine.views.of_part(snapshot, reading.entries[folder].type)
        try:
            newer = exp.GT(this=exp.column(COMMIT), expression=exp.Literal.number(reading.since.get(folder, 0)))
            sql = render(exp.select("*").from_(view).where(newer))
            try:
                rows = reading.engine.rows(sql)
            except CapacityError:
                # The rows exceed the size limit of one answer.
                rows = pa.Table.from_batches(reading.engine.batches(sql))
        finally:
            reading.engine.views.drop(view)
    return rows


def _stays(rows: pa.Table, folder: str, bad: Sequence[_Bad]) -> npt.NDArray[np.int64]:
    """Returns the positions of the rows that are not bad."""
    return np.setdiff1d(np.arange(rows.num_rows), [record.place for record in bad if record.folder == folder])


def identity_of(entry: DatasetEntry, rows: pa.Table, place: int) -> tuple[str, list[str]]:
    """Returns the name of the dataset and the key of a record."""

    def value(row: Any, path: Sequence[str]) -> str:
        for name in path:
            row = row.get(physical(name)) if isinstance(row, dict) else None
        return str(row)

    (row,) = rows.slice(place, 1).to_pylist()
    return f"{entry.dataverse}.{entry.name}", [value(row, path) for path in entry.keys]
