"""What a channel's query fails on: found by trying parts, named, and set aside, so that all others are answered.

It may be a record, or an interest with parameters that nobody thought of: then it alone goes without. A record is to
blame for all only if it fails with interests that are not to blame themselves: interests are looked at first. What the
others are told comes from one run over all records that are left: parts are only tried to see whether they fail.
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
from tocsin.cluster.channels.executions.bisection import failing, spread
from tocsin.cluster.channels.executions.execution_snapshot import ExecutionSnapshot, folder_of
from tocsin.language.translate.spark_text import render
from tocsin.pipeline.channels.interests import Ids, InterestTable
from tocsin.pipeline.channels.run_query import ExecutionResults, together
from tocsin.rules.model.columns import COMMIT, physical
from tocsin.wire.errors import CapacityError, StatementError, UnavailableError

# So many single records, or interests, spread over all, are tried first. Where each of more records fails, with
# whichever interest, the query is at fault.
SAMPLE: Final = 8
# So many interests are tried before it is said that it fails with all, where none is known to have worked before.
WIDE_SAMPLE: Final = 32
REPRESENTATIVES: Final = 3
_ROUNDS: Final = 4
# Of so many interests it is found out on which records each fails; where they are more, it may be few records instead.
FEW_INTERESTS: Final = 16
# Of so many records it is found out for whom they fail, up to so many interests, and with so many runs for all records:
# nobody is told anything meanwhile.
FEW_RECORDS: Final = 4
MOST_ON_A_RECORD: Final = 64
MOST_RUNS: Final = 160
# So many are found at one go, and the others at the next.
MOST_INTERESTS: Final = 512
_ALL: Final = 1 << 62

Part = Mapping[str, pa.Table]
"""New rows per dataset, by its folder. Those of datasets that are not named are taken whole."""


@dataclass(frozen=True, slots=True)
class PoisonRecord:
    """A record on which the channel's query fails: for all, or for one interest. `dataset` is "" where the interest is
    to blame, and not a record; `key` then has its id."""

    dataset: str
    key: Sequence[str]
    reason: str
    interest: int | None = None
    known: bool = False  # it was found before, and is left out since


@dataclass(frozen=True, slots=True)
class _Bad:
    """A new record, by its place in its dataset's, on which the query fails, and how."""

    folder: str
    place: int
    reason: str


Run = Callable[[Part, Ids | None], ExecutionResults]
"""Answers for some new rows, and for all interests or some."""


class PoisonSearch:
    """One search, in one execution. `left` are interests that take no part in it."""

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
        folders = {folder_of(one) for one in reading.query.scans if one.new}
        self._rows = {folder: rows_of(folder) for folder in sorted(folders)}
        self._nothing = {folder: one.slice(0, 0) for folder, one in self._rows.items()}

    def without_culprits(self, first: StatementError) -> tuple[ExecutionResults, list[PoisonRecord]]:
        """The results of all but the culprits. Raises the query's error where nobody is to blame."""
        aside: dict[int, StatementError] = {}
        outcome: ExecutionResults | StatementError = first
        while isinstance(outcome, StatementError):
            blamed = self._blamed(first)
            if not blamed:
                break
            aside |= blamed
            self._left |= blamed.keys()
            outcome = self._outcome({}, self._rest())
        culprits: list[PoisonRecord] = []
        if isinstance(outcome, StatementError):
            outcome, records = self._without_records(outcome, self._rest())
            outcome, culprits = self._for_whom(outcome, records)
        parts = [outcome]
        for group in [sorted(aside)] if len(aside) > FEW_INTERESTS else [[one] for one in sorted(aside)]:
            partly = self._partly(group) if group and _count(self._rows) > 1 else None
            if partly is None:
                for one in group:
                    self._interests.strike(one, aside[one].message)
                    culprits.append(PoisonRecord("", [str(one)], aside[one].message, one))
                continue
            parts.append(partly[0])
            named = self._named(partly[1])
            for one in group:
                self._interests.doubt(one)
                culprits += [replace(each, interest=one) for each in named]
        return together(parts), culprits

    def _rest(self) -> Ids:
        return Ids(without=tuple(sorted(self._left)))

    # ------------------------------------------------------------ interests

    def _partly(self, group: Sequence[int]) -> tuple[ExecutionResults, list[_Bad]] | None:
        """The results of some interests without those of records on which one of them fails; None where each does."""
        alone = Ids(only=tuple(group))
        whole = self._outcome({}, alone)
        if isinstance(whole, ExecutionResults):
            return whole, []
        try:
            found, records = self._without_records(whole, alone)
        except StatementError:
            return None
        return (found, records) if len(records) < _count(self._rows) else None

    def _for_whom(
        self, found: ExecutionResults, records: Sequence[_Bad]
    ) -> tuple[ExecutionResults, list[PoisonRecord]]:
        """What was found without these records, and with them what is found for interests that do not fail on them."""
        ids = sorted(self._interests.identities() - self._left)
        spoilt: dict[int, dict[int, str]] = {}  # of an interest, the records on which it fails, and how
        for_all = set(range(len(records)))
        if len(ids) >= 2 and len(records) <= FEW_RECORDS:
            last = self._runs + MOST_RUNS
            for number, record in enumerate(records):
                errors = self._failing_on(record, ids, last) if self._runs < last else {}
                if errors:
                    for_all.discard(number)
                for one, error in errors.items():
                    spoilt.setdefault(one, {})[number] = error.message
        groups: dict[frozenset[int], list[int]] = {}
        for one, reasons in sorted(spoilt.items()):
            groups.setdefault(frozenset(reasons), []).append(one)
        parts: list[ExecutionResults] = []
        if groups:
            others = Ids(without=tuple(sorted({*self._left, *spoilt})))
            for without, among in [(frozenset[int](), others), *((k, Ids(only=tuple(v))) for k, v in groups.items())]:
                gone = [records[number] for number in sorted(for_all | without)]
                outcome = self._outcome(self._rows_without(gone), among)
                if isinstance(outcome, StatementError):
                    return found, self._named(records)
                parts.append(outcome)
        culprits = self._named([records[number] for number in sorted(for_all)])
        for one, reasons in sorted(spoilt.items()):
            mine = [replace(records[number], reason=reason) for number, reason in sorted(reasons.items())]
            culprits += [replace(each, interest=one) for each in self._named(mine)]
        return (together(parts) if parts else found), culprits

    def _failing_on(self, record: _Bad, ids: Sequence[int], last: int) -> dict[int, StatementError]:
        """Interests that fail on this record; none where that cannot be said of some alone, or takes too long."""
        part = {**self._nothing, record.folder: self._rows[record.folder].slice(record.place, 1)}
        tried = {one: self._outcome(part, Ids(one, one)) for one in spread(ids, SAMPLE)}
        if all(isinstance(one, StatementError) for one in tried.values()):
            return {}
        tried |= {one: self._outcome(part, Ids(one, one)) for one in spread(ids, WIDE_SAMPLE) if one not in tried}
        if not any(isinstance(one, ExecutionResults) and len(one) for one in tried.values()):
            return {}  # nobody is known who would lose something
        known = {one: outcome if isinstance(outcome, StatementError) else None for one, outcome in tried.items()}
        bad = sum(error is not None for error in known.values())
        if bad * len(ids) > 2 * MOST_ON_A_RECORD * len(known):
            return {}  # by far too many
        found = self._failing(ids, part, StatementError(record.reason), MOST_ON_A_RECORD, last, known)
        return {} if len(found) > MOST_ON_A_RECORD or self._runs >= last else found

    def _blamed(self, first: StatementError) -> dict[int, StatementError]:
        """Interests on which it fails, and how, where it does not fail on others. None: it is the records, if any."""
        ids = sorted(self._interests.identities() - self._left)
        if len(ids) < 2:
            return {}
        suspects = [one for one in ids if one in self._interests.suspects]
        if 0 < len(suspects) < len(ids):
            without = Ids(without=tuple(sorted({*self._left, *suspects})))
            if self._failure({}, without) is None:
                return self._failing(suspects, {}, first)
        sample = spread(ids, SAMPLE)
        tried = {one: self._failure({}, Ids(one, one)) for one in sample}
        bad = {one: error for one, error in tried.items() if error is not None}
        if len(bad) < len(sample):
            if len(sample) == len(ids):
                return bad
            last = self._runs + MOST_RUNS // 2
            bad = self._failing(ids, {}, first, FEW_INTERESTS, last)
            if len(bad) <= FEW_INTERESTS and self._runs < last:
                return bad
            if all(map(self._interests.has_worked, bad)) or self._some_record_passes():
                return {}
            return self._failing(ids, {}, first)
        # It fails on every one that was tried.
        if self._some_record_passes():
            return {}
        part = self._harmless(ids, sample)
        return {} if part is None else self._failing(ids, part, first)

    def _failing(  # noqa: PLR0917
        self,
        ids: Sequence[int],
        part: Part,
        first: StatementError,
        most: int | None = None,
        last: int = _ALL,
        known: Mapping[int, StatementError | None] = MappingProxyType({}),
    ) -> dict[int, StatementError]:
        """`last`: the number of the run at which it is given up; `known`: those that were tried by themselves."""
        without = tuple(sorted(self._left))

        def failure(begin: int, end: int) -> StatementError | None:
            if begin + 1 == end and ids[begin] in known:
                return known[ids[begin]]
            return self._failure(part, Ids(ids[begin], ids[end - 1], without))

        found = failing(len(ids), failure, MOST_INTERESTS if most is None else most, lambda: self._runs >= last)
        bad = {ids[at]: error for at, error in found.items()}
        if most is None and len(bad) > MOST_INTERESTS:
            # The next try, which leaves these out, finds others.
            for one, error in bad.items():
                self._interests.strike(one, error.message)
            raise first
        return bad

    def _some_record_passes(self) -> bool:
        """Whether there is one with which no interest fails: then those that fail are to blame."""
        if _count(self._rows) < 2:
            return False
        return any(self._failure(part, self._rest()) is None for part in self._singles(SAMPLE))

    def _harmless(self, ids: Sequence[int], sample: Sequence[int]) -> Part | None:
        """A record with which some interest does not fail."""
        whole = set(sample) if _count(self._rows) == 1 else set()  # these were tried with all there is
        known = all(map(self._interests.has_worked, sample))
        for number, part in enumerate(self._singles(REPRESENTATIVES)):
            for one in spread(ids, SAMPLE if known or number else WIDE_SAMPLE):
                if one not in whole and self._failure(part, Ids(one, one)) is None:
                    return part
        return None

    def _singles(self, count: int) -> Iterator[Part]:
        """Single records of a dataset whose records make it fail: by themselves, or where they meet others."""
        filled = sorted((one for one in self._rows if self._rows[one].num_rows), key=lambda one: -len(self._rows[one]))
        failed = [one for one in filled if self._failure({**self._nothing, one: self._rows[one]}, self._rest())]
        others = self._nothing if failed else self._rows
        for folder in (failed or filled)[:1]:
            for at in spread(range(self._rows[folder].num_rows), count):
                yield {**others, folder: self._rows[folder].slice(at, 1)}

    # ------------------------------------------------------------ records

    def _without_records(self, first: StatementError, ids: Ids) -> tuple[ExecutionResults, list[_Bad]]:
        """The results of these interests without the records on which the query fails for them, and those records."""
        bad: list[_Bad] = []
        for _ in range(_ROUNDS):
            rows = self._rows_without(bad)
            found = self._culprits(rows, first, ids)
            if not found:
                raise first
            for folder, reasons in found.items():
                stays = _stays(self._rows[folder], folder, bad)
                bad += [_Bad(folder, int(stays[at]), reason) for at, reason in reasons.items()]
            outcome = self._outcome(self._rows_without(bad), ids)
            if isinstance(outcome, ExecutionResults):
                return outcome, bad
            first = outcome
        raise first

    def _rows_without(self, bad: Sequence[_Bad]) -> Part:
        made: dict[str, pa.Table] = {}
        for folder, rows in self._rows.items():
            stays = _stays(rows, folder, bad)
            # Of no rows pyarrow cannot take structs.
            made[folder] = rows.take(pa.array(stays)) if len(stays) else rows.slice(0, 0)
        return made

    def _named(self, bad: Sequence[_Bad]) -> list[PoisonRecord]:
        return [
            PoisonRecord(*identity_of(self._reading.entries[one.folder], self._rows[one.folder], one.place), one.reason)
            for one in bad
        ]

    def _culprits(self, rows: Part, first: StatementError, ids: Ids) -> dict[str, dict[int, str]]:
        """Per dataset the places of records that make it fail, and how."""
        if self._failure(self._nothing, ids) is not None:
            raise first
        found = {folder: self._among(folder, rows, self._nothing, first, ids) for folder in rows}
        if not any(found.values()) and len(rows) > 1:
            # It fails only where records of several datasets meet.
            largest = max(rows, key=lambda folder: rows[folder].num_rows)
            found = {largest: self._among(largest, rows, rows, first, ids)}
        return {folder: reasons for folder, reasons in found.items() if reasons}

    def _among(self, folder: str, rows: Part, others: Part, first: StatementError, ids: Ids) -> dict[int, str]:
        own = rows[folder]

        def failure(begin: int, end: int) -> StatementError | None:
            return self._failure({**others, folder: own.slice(begin, end - begin)}, ids) if begin < end else None

        count = own.num_rows
        if failure(0, count) is None:
            return {}
        if count > SAMPLE and all(failure(at, at + 1) is not None for at in spread(range(count), SAMPLE)):
            raise first
        return {at: error.message for at, error in failing(count, failure, _ALL).items()}

    def _failure(self, part: Part, ids: Ids) -> StatementError | None:
        outcome = self._outcome(part, ids)
        return outcome if isinstance(outcome, StatementError) else None

    def _outcome(self, part: Part, ids: Ids) -> ExecutionResults | StatementError:
        if self._is_stopped():
            raise UnavailableError("the channel was stopped")
        self._runs += 1
        try:
            return self._run(part, ids)
        except StatementError as error:
            return error


def _count(rows: Part) -> int:
    return sum(one.num_rows for one in rows.values())


def collected(reading: ExecutionSnapshot, folder: str) -> pa.Table:
    """A dataset's new rows."""
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
                rows = pa.Table.from_batches(reading.engine.batches(sql))  # more than fits into an answer
        finally:
            reading.engine.views.drop(view)
    return rows


def _stays(rows: pa.Table, folder: str, bad: Sequence[_Bad]) -> npt.NDArray[np.int64]:
    """The places of the others."""
    return np.setdiff1d(np.arange(rows.num_rows), [one.place for one in bad if one.folder == folder])


def identity_of(entry: DatasetEntry, rows: pa.Table, place: int) -> tuple[str, list[str]]:
    """The dataset and the key of a record."""

    def value(row: Any, path: Sequence[str]) -> str:
        for name in path:
            row = row.get(physical(name)) if isinstance(row, dict) else None
        return str(row)

    (row,) = rows.slice(place, 1).to_pylist()
    return f"{entry.dataverse}.{entry.name}", [value(row, path) for path in entry.keys]
