"""What a channel's query fails on: found by halving, named, and set aside, so that all others are answered.

Mostly it is a record. It may be an interest, with parameters that nobody thought of: then it alone goes without. What
the others are told comes from one run over all records that are left: parts are only tried to see whether they fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from sqlglot import exp

from tocsin.cluster.channels.reading import Reading, folder_of
from tocsin.cluster.entries import DatasetEntry
from tocsin.pipeline.channels.interests import Ids, Interests
from tocsin.pipeline.channels.running import Found, together
from tocsin.rules.model.columns import COMMIT, physical
from tocsin.wire.errors import StatementError, UnavailableError

# So many single records, spread over all, are tried first: where each of them fails, the query is at fault.
SAMPLE: Final = 8
_ROUNDS: Final = 4
# Where it fails for several of so many interests, spread over all, or for more than a few at all, it is not they.
SAMPLE_INTERESTS: Final = 4
FEW_INTERESTS: Final = 16

Part = Mapping[str, pa.Table]
"""New rows per dataset, by its folder."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """A record on which the channel's query fails: for all, or for one interest. `dataset` is "" where the interest is
    to blame, and not a record; `key` then has its id."""

    dataset: str
    key: Sequence[str]
    reason: str
    interest: int | None = None


Run = Callable[[Mapping[str, str], Ids | None], Found]
"""Answers for views of new rows, by folder (those not named are taken whole), and for all interests or some."""


class Search:
    """One search, in one execution."""

    def __init__(self, reading: Reading, interests: Interests, run: Run, is_stopped: Callable[[], bool]) -> None:
        self._reading = reading
        self._interests = interests
        self._run = run
        self._is_stopped = is_stopped
        self._ids: Ids | None = None

    def without_culprits(self, first: StatementError) -> tuple[Found, list[Culprit]]:
        """The results of all but the culprits. Raises the query's error where nobody is to blame."""
        blamed = self._known() or self._blamed()
        if not blamed:
            return self._without_records(first)
        self._interests.suspects.update(blamed)
        self._ids = Ids(without=tuple(blamed))
        found, culprits = self._answered()
        parts = [found]
        for interest in blamed:
            self._ids = Ids(interest, interest)
            try:
                found, bad = self._answered()
            except StatementError as fault:
                bad = [Culprit("", [str(interest)], fault.message)]
            else:
                parts.append(found)
            culprits += [replace(one, interest=interest) for one in bad]
        return together(parts), culprits

    def _answered(self) -> tuple[Found, list[Culprit]]:
        try:
            return self._run({}, self._ids), []
        except StatementError as error:
            return self._without_records(error)

    # ------------------------------------------------------------ interests

    def _known(self) -> list[int]:
        """Those that were to blame before, if they are now."""
        suspects = sorted(self._interests.suspects)
        if len(suspects) > FEW_INTERESTS:
            self._interests.suspects.clear()
        if not 0 < len(suspects) <= FEW_INTERESTS:
            return []
        self._ids = Ids(without=tuple(suspects))
        failed = self._failure({})
        self._ids = None
        return suspects if failed is None else []

    def _blamed(self) -> list[int]:
        """The interests on which it fails, where they are few; none where it fails for many."""
        ids = sorted(self._interests.identities())

        def fails(begin: int, end: int) -> bool:
            self._ids = Ids(ids[begin], ids[end - 1])
            try:
                return self._failure({}) is not None
            finally:
                self._ids = None

        count = len(ids)
        sample = sorted({count * i // SAMPLE_INTERESTS for i in range(SAMPLE_INTERESTS)})
        failing = [at for at in sample if fails(at, at + 1)]
        if len(sample) == count:
            return [ids[at] for at in failing] if len(failing) < count else []
        if len(failing) > 1:
            return []
        found: list[int] = []
        doubtful = [(0, count)]
        while doubtful:
            begin, end = doubtful.pop()
            if begin + 1 == end:
                found.append(ids[begin])
                if len(found) > FEW_INTERESTS:
                    return []
                continue
            middle = (begin + end) // 2
            doubtful += [half for half in ((begin, middle), (middle, end)) if fails(*half)]
        return sorted(found)

    # ------------------------------------------------------------ records

    def _without_records(self, first: StatementError) -> tuple[Found, list[Culprit]]:
        scans = self._reading.query.scans
        rows = {folder: _collected(self._reading, folder) for folder in {folder_of(one) for one in scans if one.new}}
        culprits: list[Culprit] = []
        for _ in range(_ROUNDS):
            found = self._culprits(rows, first)
            count = sum(map(len, found.values()))
            if not count or (count > 1 and count == _count(rows)):
                raise first
            for folder, reasons in found.items():
                culprits += _named(self._reading.entries[folder], rows[folder], reasons)
                stays = np.ones(rows[folder].num_rows, bool)
                stays[list(reasons)] = False
                rows[folder] = rows[folder].filter(pa.array(stays))
            try:
                with self._views(rows) as views:
                    return self._run(views, self._ids), culprits
            except StatementError as error:
                first = error
        raise first

    def _culprits(self, rows: Part, first: StatementError) -> dict[str, dict[int, str]]:
        """Per dataset the places of records that make it fail, and how."""
        nothing = {folder: one.slice(0, 0) for folder, one in rows.items()}
        if self._failure(nothing) is not None:
            raise first
        found = {folder: self._among(folder, one, nothing, first) for folder, one in rows.items()}
        if not any(found.values()) and len(rows) > 1:
            # It fails only where records of several datasets meet.
            largest = max(rows, key=lambda folder: rows[folder].num_rows)
            found = {largest: self._among(largest, rows[largest], rows, first)}
        return {folder: reasons for folder, reasons in found.items() if reasons}

    def _among(self, folder: str, rows: pa.Table, others: Part, first: StatementError) -> dict[int, str]:
        def failure(begin: int, end: int) -> StatementError | None:
            return self._failure({**others, folder: rows.slice(begin, end - begin)}) if begin < end else None

        count = rows.num_rows
        if failure(0, count) is None:
            return {}
        if count > SAMPLE:
            sample = {count * i // SAMPLE for i in range(SAMPLE)}
            if all(failure(at, at + 1) is not None for at in sorted(sample)):
                raise first
        found: dict[int, str] = {}
        doubtful = [(0, count)]
        while doubtful:
            begin, end = doubtful.pop()
            # Seen to fail once, a single record is tried again: the trouble may have been another.
            if begin + 1 == end:
                error = failure(begin, end)
                if error is not None:
                    found[begin] = error.message
                continue
            middle = (begin + end) // 2
            halves = [(begin, middle), (middle, end)]
            doubtful += [half for half in halves if failure(*half) is not None]
        return dict(sorted(found.items()))

    def _failure(self, part: Part) -> StatementError | None:
        if self._is_stopped():
            raise UnavailableError("the channel was stopped")
        with self._views(part) as views:
            try:
                self._run(views, self._ids)
            except StatementError as error:
                return error
        return None

    @contextmanager
    def _views(self, part: Part) -> Iterator[dict[str, str]]:
        views = self._reading.engine.views
        names: dict[str, str] = {}
        try:
            for folder, rows in part.items():
                names[folder] = views.of_rows(rows)
            yield names
        finally:
            for name in names.values():
                views.drop(name)


def _count(rows: Part) -> int:
    return sum(one.num_rows for one in rows.values())


def _collected(reading: Reading, folder: str) -> pa.Table:
    rows = reading.new_rows(folder)
    if rows is None:
        snapshot = reading.rows_in_files(folder)
        view = reading.engine.views.of_part(snapshot, reading.entries[folder].type)
        try:
            newer = exp.GT(this=exp.column(COMMIT), expression=exp.Literal.number(reading.since.get(folder, 0)))
            rows = reading.engine.rows(exp.select("*").from_(view).where(newer).sql(dialect="spark"))
        finally:
            reading.engine.views.drop(view)
    return rows


def _named(entry: DatasetEntry, rows: pa.Table, reasons: Mapping[int, str]) -> list[Culprit]:
    def value(row: Any, path: Sequence[str]) -> str:
        for name in path:
            row = row.get(physical(name)) if isinstance(row, dict) else None
        return str(row)

    bad = rows.take(pa.array(list(reasons))).to_pylist()
    return [
        Culprit(f"{entry.dataverse}.{entry.name}", [value(row, path) for path in entry.keys], reason)
        for row, reason in zip(bad, reasons.values(), strict=True)
    ]
