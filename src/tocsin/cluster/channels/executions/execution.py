"""Runs one execution of a channel: one query over all interests, from one commit vector to the next.

If the engine lacks memory, disk space or time for the whole, the execution runs in parts (`execution_parts`). If the
query itself fails, a search isolates the poison records and the bad interests (`poison_search`). All other interests
still get their results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

import pyarrow as pa

from tocsin.cluster.catalog.entries import DatasetEntry
from tocsin.cluster.channels.executions.commit_range import CommitRange, folder_of
from tocsin.cluster.channels.executions.execution_parts import (
    RESOURCE_ERRORS,
    PartedExecution,
    PartedRun,
    ResourceError,
)
from tocsin.cluster.channels.executions.execution_runs import SparkQuestion
from tocsin.cluster.channels.executions.limits import ExecutionLimits
from tocsin.cluster.channels.executions.new_row_views import NewRowViews
from tocsin.cluster.channels.executions.part_sizes import ExecutionPart, ExecutionSize
from tocsin.cluster.channels.executions.poison_search import PoisonSearch
from tocsin.cluster.channels.executions.record_search import NewRowsByFolder, PoisonRecord
from tocsin.cluster.engine.engine_session import EngineLostError
from tocsin.language.channels.compiler import CalledFunction, Scan
from tocsin.pipeline.channels import run_query
from tocsin.pipeline.channels.interests import Ids, InterestTable
from tocsin.pipeline.channels.run_query import ExecutionMoment, ExecutionResults, merge_results
from tocsin.rules.model.columns import COMMIT
from tocsin.rules.model.cursors import InterestId
from tocsin.wire.errors import CapacityError, StatementError, TocsinError, UnavailableError

_Record = tuple[str, tuple[str, ...], int]
"""A record version: its dataset, its key and its commit."""


class _ExecutionObserver(Protocol):
    """The channel that is executed. An execution calls it on its own thread."""

    def is_stopped(self) -> bool: ...

    def search_begins(self, error: StatementError) -> None:
        """Called before a poison search, which may take minutes."""

    def parts_begin(self, error: TocsinError | None) -> None:
        """Called when the engine cannot run the execution as a whole. Without an error, it was not tried, because
        earlier executions were too large."""

    def part_ended(self, results: int) -> None:
        """Called after each part, with the number of its results; a part that failed has none."""


@dataclass(slots=True)
class ChannelExecution:
    """One execution of a channel, and its query runs. A run for which the engine lacks resources is split into parts. A
    smallest part that still fails is set aside, and the following runs leave it out."""

    reading: CommitRange
    interests: InterestTable
    new_rows: NewRowViews
    size: ExecutionSize
    limits: ExecutionLimits
    channel: _ExecutionObserver
    ask: SparkQuestion
    _moment: ExecutionMoment = field(init=False)
    _rows: dict[str, pa.Table] = field(default_factory=dict)
    _lost: dict[InterestId, TocsinError] = field(
        default_factory=dict
    )  # interests that are set aside, where records cannot be divided
    # Records that are set aside for one interest only.
    _lost_records: dict[InterestId, dict[_Record, TocsinError]] = field(default_factory=dict)
    _took_s: float = 0.0  # duration of the last query
    _has_interests: bool = True  # False after an engine was lost: the next one does not have the interests yet

    def execute(self, now: datetime, previous: datetime) -> tuple[ExecutionResults, list[PoisonRecord]]:
        """Returns the results of all interests, and the poison records: the records and interests that were set
        aside."""
        reading, interests = self.reading, self.interests
        self._moment = self._moment_of(now, previous)
        if interests.is_stale:
            self._prepare()
        left_out = interests.left_out()
        poison_records: list[PoisonRecord] = []
        try:
            results = self.run({}, Ids(without=tuple(left_out)) if left_out else None)
            interests.mark_succeeded({*left_out, *self._interests_set_aside})
        except StatementError as error:
            if self.channel.is_stopped() or not any(scan.new for scan in reading.query.scans):
                raise
            self.channel.search_begins(error)
            self._renew()  # a removed interest that is still in Spark's cached table may be the cause
            results, poison_records = PoisonSearch(self, left_out, self.limits.search).without_poison(error)
        self.size.fits_one_task = run_query.fits_one_task(len(interests), results)
        self.size.losses = 0
        known_records = [
            PoisonRecord("", [str(interest)], reason, interest, known=True) for interest, reason in left_out.items()
        ]
        return results, poison_records + self._set_aside() + known_records

    def warm_up(self, now: datetime) -> None:
        """Does what the first execution has to do in any case, without new rows and without results: hands the
        interests over, and lets Spark plan the query and generate its code."""
        self._moment = self._moment_of(now, now)
        self._prepare()
        self._ask_spark({folder: self.reading.old_row(folder) for folder in self.reading.watched_folders}, None)

    def _moment_of(self, now: datetime, previous: datetime) -> ExecutionMoment:
        reading = self.reading
        return ExecutionMoment(
            now,
            previous,
            {watched.since: reading.since.get(folder_of(watched), 0) for watched in reading.query.watched},
            many=not reading.watched_folders or not all(reading.is_small(folder) for folder in reading.watched_folders),
            in_one_task=self.size.fits_one_task and reading.fits_one_task(),
        )

    @property
    def _interests_set_aside(self) -> set[InterestId]:
        """The interests that are set aside, or that have records set aside."""
        return {*self._lost, *self._lost_records}

    def _set_aside(self) -> list[PoisonRecord]:
        interests = [
            PoisonRecord("", [str(interest)], error.message, interest) for interest, error in self._lost.items()
        ]
        records = [
            PoisonRecord(dataset, list(key), error.message, interest)
            for interest, errors in self._lost_records.items()
            for (dataset, key, _), error in errors.items()
        ]
        return interests + records

    def _prepare(self) -> None:
        """Hands the interests over to Spark, apart from any query, so that no record is blamed for a failure here."""
        self._hand_over(self.interests.prepared)

    def _renew(self) -> None:
        if self.interests.gone:
            self._hand_over(self.interests.renew)

    def _hand_over(self, work: Callable[[], object]) -> None:
        """Repeats the work until it succeeds. After failures the interests are handed over in smaller steps."""
        has_begun = False

        def hand_over() -> None:
            nonlocal has_begun
            has_begun = True
            work()

        while True:
            if self.channel.is_stopped():
                raise UnavailableError("the channel was stopped")
            has_begun, was_split = False, self.interests.is_split
            try:
                self.ask(hand_over)
            except (CapacityError, EngineLostError):
                if was_split:
                    raise
                if has_begun:
                    self.interests.count_handover_failure()
            else:
                self._has_interests = True
                return

    def rows_of(self, folder: str) -> pa.Table:
        """Returns the new rows of a dataset, which are collected once per execution."""
        if folder not in self._rows:
            self._rows[folder] = self.ask(lambda: self.reading.collect_new_rows(folder))
        return self._rows[folder]

    # ------------------------------------------------------------ whole, or in parts

    def run(self, part: NewRowsByFolder, among: Ids | None) -> ExecutionResults:
        """Runs the query for all or some of the new records, and for all or some of the interests."""
        resource_error: ResourceError | None = None
        ids = (among or Ids()).among(self.interests.identities())
        if self._is_thought_to_pass(part, ids):
            try:
                results = self._ask_spark(part, among)
                if not part and self.size.has_needed_parts:
                    self.size.learn_whole(results.size_bytes, self._pairs(part, ids))
                return results
            except RESOURCE_ERRORS as error:
                self.size.losses += isinstance(error, EngineLostError)
                is_coincidence = isinstance(error, EngineLostError) and not self.size.loses_engines
                if self.channel.is_stopped() or is_coincidence:
                    raise
                resource_error = error
                self.channel.parts_begin(error)
                self._end_part(0)
                self._renew()  # a removed interest may still occupy the memory that is missing
        else:
            self.channel.parts_begin(None)
        parts = []
        for interest in ids:
            if interest in self._lost_records:
                rows = {folder: self._without_lost(interest, folder, rows) for folder, rows in self._axis(part).items()}
                if any(map(len, rows.values())):
                    parts.append(self._run_in_parts([interest], {**part, **rows}, None))
        other_interests = [interest for interest in ids if interest not in self._interests_set_aside]
        if other_interests:
            parts.append(self._run_in_parts(other_interests, part, resource_error))
        return merge_results(parts)

    def _is_thought_to_pass(self, part: NewRowsByFolder, ids: Sequence[InterestId]) -> bool:
        if not self._interests_set_aside.isdisjoint(ids) or not self.size.slow.isdisjoint(ids):
            return False
        if self.size.loses_engines or self.interests.is_split:
            return False
        return not self.size.has_needed_parts or self.size.fits(self._pairs(part, ids))

    def _pairs(self, part: NewRowsByFolder, ids: Sequence[InterestId]) -> int:
        return len(ids) * max(1, sum(map(len, self._axis(part).values())))

    def _end_part(self, results: int) -> None:
        self.size.parts += 1
        self.channel.part_ended(results)

    def _axis(self, part: NewRowsByFolder) -> dict[str, pa.Table]:
        """The new records of the datasets along which the execution can be split."""
        folders = [entry.folder for entry in self.reading.query.parted_by if isinstance(entry, DatasetEntry)]
        return {folder: part[folder] if folder in part else self.rows_of(folder) for folder in folders}

    def _run_in_parts(
        self, ids: Sequence[InterestId], part: NewRowsByFolder, failed: ResourceError | None
    ) -> ExecutionResults:
        all_suspects = self.interests.suspects
        suspect_ids = [interest for interest in ids if interest in all_suspects] if len(ids) > 1 else []
        other_ids = [interest for interest in ids if interest not in all_suspects] if suspect_ids else list(ids)
        ordered, axis = [*other_ids, *suspect_ids], self._axis(part)
        records = sum(map(len, axis.values()))

        def run(piece: ExecutionPart, *, alone: bool, deadline_s: float | None) -> ExecutionResults:
            rows = part if len(piece.records) >= max(1, records) else {**part, **_slices(axis, piece.records)}
            results = 0
            try:
                found = self._ask_spark(rows, self._ids(ordered, piece.interests), alone=alone, deadline_s=deadline_s)
                results = len(found)
            finally:
                self._end_part(results)
            return found

        outcome = PartedRun(
            len(ordered), max(1, records), run, self.size,
            apart=len(suspect_ids), probe=self._probe, took_s=lambda: self._took_s,
            measure=lambda _piece, results: results.size_bytes,
        ).run_parts(None if suspect_ids else failed)  # fmt: skip
        if not part:
            self.size.learn(outcome)
        self._judge(outcome, ordered, axis)
        return merge_results(
            [results for _, results in sorted(outcome.passed, key=lambda passed: passed[0].records.start)]
        )

    def _ids(self, ordered: Sequence[InterestId], indexes: range) -> Ids:
        chosen_ids = ordered[indexes.start : indexes.stop]
        if len(chosen_ids) == 1:
            return Ids(chosen_ids[0], chosen_ids[0])
        within = Ids(chosen_ids[0], chosen_ids[-1]).among(self.interests.identities())
        unwanted_ids = set(within).difference(chosen_ids)
        return (
            Ids(only=tuple(chosen_ids))
            if len(unwanted_ids) > len(chosen_ids)
            else Ids(chosen_ids[0], chosen_ids[-1], tuple(sorted(unwanted_ids)))
        )

    def _judge(
        self, made: PartedExecution[ExecutionResults], ordered: Sequence[InterestId], axis: Mapping[str, pa.Table]
    ) -> None:
        """Records what was set aside, and marks the interests that run by themselves from now on."""
        self.size.slow -= {ordered[piece.interests.start] for piece, _ in made.passed if len(piece.interests) == 1}
        for piece, error in made.aside:
            interest = ordered[piece.interests.start]
            if not axis:
                self._lost[interest] = error
            for index in piece.records if axis else ():
                self._lost_records.setdefault(interest, {})[self._record(axis, index)] = error
        for index in {piece.interests.start for piece, _ in made.aside}:
            interest = ordered[index]
            has_passed = any(index in piece.interests for piece, _ in made.passed)
            if has_passed and all(
                len(piece.records) == 1 and piece.records.start in made.lethal
                for piece, _ in made.aside
                if index in piece.interests
            ):
                continue  # the record is to blame, not the interest
            self.size.slow.add(interest)
            is_cut_off = any(len(piece.records) > 1 for piece, _ in made.aside if index in piece.interests)
            if interest not in self._lost and has_passed and not is_cut_off:
                self.interests.mark_suspect(interest)
            else:
                reasons = [error.message for piece, error in made.aside if index in piece.interests]
                self.interests.count_failure_of(interest, reasons[-1])

    # ------------------------------------------------------------ records

    def _record(self, axis: Mapping[str, pa.Table], index: int) -> _Record:
        for folder, rows in axis.items():
            if index < len(rows):
                return self._identity(folder, rows, index)
            index -= len(rows)
        raise IndexError(index)

    def _identity(self, folder: str, rows: pa.Table, index: int) -> _Record:
        dataset, key = self.reading.identity_of(folder, rows, index)
        return dataset, tuple(key), rows.column(COMMIT)[index].as_py()

    def _without_lost(self, interest: InterestId, folder: str, rows: pa.Table) -> pa.Table:
        """Returns the rows without the records that are set aside for this interest."""
        if interest in self._lost:
            return rows.slice(0, 0)
        lost = self._lost_records[interest]
        kept_indexes = [index for index in range(len(rows)) if self._identity(folder, rows, index) not in lost]
        # pyarrow cannot `take` zero rows of a struct column.
        return rows.take(pa.array(kept_indexes)) if kept_indexes else rows.slice(0, 0)

    # ------------------------------------------------------------ one query

    def _ask_spark(
        self, part: NewRowsByFolder, among: Ids | None, *, alone: bool = False, deadline_s: float | None = None
    ) -> ExecutionResults:
        """Runs the query once. Raises EngineLostError if the engine was lost while the query ran, but retries if it
        was lost before the query began."""
        has_begun = False

        def answer() -> ExecutionResults:
            nonlocal has_begun
            has_begun, began_s = True, time.monotonic()
            results = self._answer(part, among)
            self._took_s = time.monotonic() - began_s
            return results

        while True:
            if self.channel.is_stopped():
                raise UnavailableError("the channel was stopped")
            if not self._has_interests:
                self._prepare()
            try:
                return self.ask(answer, alone=alone, deadline_s=deadline_s)
            except EngineLostError:
                self._has_interests = False
                if has_begun:
                    raise

    def _answer(self, part: NewRowsByFolder, among: Ids | None) -> ExecutionResults:
        """Runs on an engine thread."""
        reading, engine = self.reading, self.reading.engine
        with ExitStack() as resources:
            views = {}
            for folder, rows in part.items():
                views[folder] = engine.views.of_rows(rows)
                resources.callback(engine.views.drop, views[folder])

            def name_of(scan: Scan | CalledFunction) -> str:
                if isinstance(scan, CalledFunction):
                    return engine.python.called(scan.function, scan.arguments)
                folder = folder_of(scan)
                if scan.new:
                    return views.get(folder) or resources.enter_context(self.new_rows.view(reading, folder))
                snapshot, kind = reading.snapshots[folder], reading.entries[folder].type
                name = engine.views.of_snapshot(folder, snapshot, kind, pinned=True)
                resources.callback(engine.views.unpin, name)
                return name

            return engine.with_translated_errors(
                lambda: run_query.run(engine.spark, reading.query, self.interests, name_of, self._moment, among)
            )

    def _probe(self) -> None:
        """Raises if the engine cannot even answer a trivial query."""
        self.ask(lambda: self.reading.engine.rows("SELECT 1"))


def _slices(axis: Mapping[str, pa.Table], records: range) -> dict[str, pa.Table]:
    """Cuts out the records of a range; the range counts over all tables, one after another."""
    slices, offset = {}, 0
    for folder, rows in axis.items():
        first, last = max(records.start - offset, 0), min(records.stop - offset, len(rows))
        slices[folder] = rows.slice(first, max(0, last - first)) if first < len(rows) else rows.slice(0, 0)
        offset += len(rows)
    return slices
