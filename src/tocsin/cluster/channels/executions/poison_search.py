"""Finds the records and interests on which a channel's query fails, and runs the query without them.

The search runs the query on parts of the input, names what fails and sets it aside. All other interests get their
results. The cause may be a record, or an interest with parameters that the query cannot handle; then only that interest
is left out. A record is poison for everybody only if it fails with interests that are not at fault themselves, so the
search checks the interests first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from tocsin.cluster.channels.executions.limits import SearchLimits
from tocsin.cluster.channels.executions.record_search import (
    FailingRecord,
    NewRowsByFolder,
    PoisonRecord,
    RecordSearch,
    SearchedExecution,
    find_failing,
    spread,
)
from tocsin.pipeline.channels.interests import Ids
from tocsin.pipeline.channels.run_query import ExecutionResults, merge_results
from tocsin.rules.model.cursors import InterestId
from tocsin.wire.errors import StatementError


class PoisonSearch:
    """One search within one execution. The interests in `left` take no part in it."""

    def __init__(self, execution: SearchedExecution, left: Iterable[InterestId], limits: SearchLimits) -> None:
        self._records = RecordSearch(execution, limits)
        self._interests = execution.interests
        self._limits = limits
        self._left = set(left)

    def without_poison(self, first: StatementError) -> tuple[ExecutionResults, list[PoisonRecord]]:
        """Returns the results without the poison records and bad interests, and names these. Raises the query's error
        if the search finds no cause."""
        aside: dict[InterestId, StatementError] = {}
        outcome: ExecutionResults | StatementError = first
        while isinstance(outcome, StatementError):
            bad_interests = self._find_interests_at_fault(first)
            if not bad_interests:
                break
            aside |= bad_interests
            self._left |= bad_interests.keys()
            outcome = self._records.outcome({}, self._remaining_interests())
        poison_records: list[PoisonRecord] = []
        if isinstance(outcome, StatementError):
            outcome, records = self._records.without_records(outcome, self._remaining_interests())
            outcome, poison_records = self._add_results_of_passing_interests(outcome, records)
        parts = [outcome]
        for group in (
            [sorted(aside)] if len(aside) > self._limits.few_interests else [[interest] for interest in sorted(aside)]
        ):
            partial = self._results_without_failing_records(group) if group and self._records.count > 1 else None
            if partial is None:
                for interest in group:
                    self._interests.count_failure_of(interest, aside[interest].message)
                    poison_records.append(PoisonRecord("", [str(interest)], aside[interest].message, interest))
                continue
            parts.append(partial[0])
            group_records = self._records.name_records(partial[1])
            for interest in group:
                self._interests.mark_suspect(interest)
                poison_records += [replace(record, interest=interest) for record in group_records]
        return merge_results(parts), poison_records

    def _remaining_interests(self) -> Ids:
        return Ids(without=tuple(sorted(self._left)))

    # ------------------------------------------------------------ interests

    def _results_without_failing_records(
        self, group: Sequence[InterestId]
    ) -> tuple[ExecutionResults, list[FailingRecord]] | None:
        """Returns the results of these interests without the records on which one of them fails, and those records.
        Returns None if every record fails."""
        alone = Ids(only=tuple(group))
        outcome = self._records.outcome({}, alone)
        if isinstance(outcome, ExecutionResults):
            return outcome, []
        try:
            results, records = self._records.without_records(outcome, alone)
        except StatementError:
            return None
        return (results, records) if len(records) < self._records.count else None

    def _add_results_of_passing_interests(
        self, found: ExecutionResults, records: Sequence[FailingRecord]
    ) -> tuple[ExecutionResults, list[PoisonRecord]]:
        """Extends the results, which lack these records, by what the records give to interests that do not fail on
        them. Returns the results and the named poison records."""
        ids = sorted(self._interests.identities() - self._left)
        failures: dict[InterestId, dict[int, str]] = {}  # interest → number of a record on which it fails → error
        for_all = set(range(len(records)))
        if len(ids) >= 2 and len(records) <= self._limits.few_records:
            last = self._records.runs + self._limits.runs
            for number, record in enumerate(records):
                errors = self._find_interests_failing_on(record, ids, last) if self._records.runs < last else {}
                if errors:
                    for_all.discard(number)
                for interest, error in errors.items():
                    failures.setdefault(interest, {})[number] = error.message
        groups: dict[frozenset[int], list[InterestId]] = {}
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
                outcome = self._records.outcome(self._records.rows_without(left_out), among)
                if isinstance(outcome, StatementError):
                    return found, self._records.name_records(records)
                parts.append(outcome)
        poison_records = self._records.name_records([records[number] for number in sorted(for_all)])
        for interest, reasons in sorted(failures.items()):
            own_records = [replace(records[number], reason=reason) for number, reason in sorted(reasons.items())]
            poison_records += [
                replace(poison_record, interest=interest) for poison_record in self._records.name_records(own_records)
            ]
        return (merge_results(parts) if parts else found), poison_records

    def _find_interests_failing_on(
        self, record: FailingRecord, ids: Sequence[InterestId], last: int
    ) -> dict[InterestId, StatementError]:
        """Returns the interests that fail on this record, with their errors. Returns nothing if all interests may fail,
        or if the search would take too long; then the record is poison for everybody."""
        part = {**self._records.no_rows, record.folder: self._records.rows[record.folder].slice(record.index, 1)}
        outcomes = {
            interest: self._records.outcome(part, Ids(interest, interest))
            for interest in spread(ids, self._limits.sample)
        }
        if all(isinstance(outcome, StatementError) for outcome in outcomes.values()):
            return {}
        outcomes |= {
            interest: self._records.outcome(part, Ids(interest, interest))
            for interest in spread(ids, self._limits.wide_sample)
            if interest not in outcomes
        }
        if not any(isinstance(outcome, ExecutionResults) and len(outcome) for outcome in outcomes.values()):
            return {}  # no interest is known that would lose a result
        known_errors = {
            interest: outcome if isinstance(outcome, StatementError) else None for interest, outcome in outcomes.items()
        }
        failures = sum(error is not None for error in known_errors.values())
        if failures * len(ids) > 2 * self._limits.interests_per_record * len(known_errors):
            return {}  # the sample predicts far too many failing interests
        failing_interests = self._find_failing_interests(
            ids, part, StatementError(record.reason), self._limits.interests_per_record, last, known_errors
        )
        return (
            {}
            if len(failing_interests) > self._limits.interests_per_record or self._records.runs >= last
            else failing_interests
        )

    def _find_interests_at_fault(self, first: StatementError) -> dict[InterestId, StatementError]:
        """Returns the interests that are at fault, with their errors: the query fails with them and not with others.
        Returns nothing if the records are the cause."""
        ids = sorted(self._interests.identities() - self._left)
        if len(ids) < 2:
            return {}
        suspects = [interest for interest in ids if interest in self._interests.suspects]
        if 0 < len(suspects) < len(ids):
            without = Ids(without=tuple(sorted({*self._left, *suspects})))
            if self._records.failure({}, without) is None:
                return self._find_failing_interests(suspects, {}, first)
        sample = spread(ids, self._limits.sample)
        errors = {interest: self._records.failure({}, Ids(interest, interest)) for interest in sample}
        failing_interests = {interest: error for interest, error in errors.items() if error is not None}
        if len(failing_interests) < len(sample):
            if len(sample) == len(ids):
                return failing_interests
            last = self._records.runs + self._limits.runs // 2
            failing_interests = self._find_failing_interests(ids, {}, first, self._limits.few_interests, last)
            if len(failing_interests) <= self._limits.few_interests and self._records.runs < last:
                return failing_interests
            if all(map(self._interests.has_succeeded, failing_interests)) or self._some_record_passes():
                return {}
            return self._find_failing_interests(ids, {}, first)
        # Every sampled interest fails.
        if self._some_record_passes():
            return {}
        part = self._find_passing_record(ids, sample)
        return {} if part is None else self._find_failing_interests(ids, part, first)

    def _find_failing_interests(  # noqa: PLR0917
        self,
        ids: Sequence[InterestId],
        part: NewRowsByFolder,
        first: StatementError,
        most: int | None = None,
        last: float = math.inf,
        known: Mapping[InterestId, StatementError | None] = MappingProxyType({}),
    ) -> dict[InterestId, StatementError]:
        """Bisects the interests and returns those that fail, with their errors. The search stops when the number of
        runs reaches `last`. `known` has the outcomes of interests that were already tried alone."""
        without = tuple(sorted(self._left))

        def failure(begin: int, end: int) -> StatementError | None:
            if begin + 1 == end and ids[begin] in known:
                return known[ids[begin]]
            return self._records.failure(part, Ids(ids[begin], ids[end - 1], without))

        bound = self._limits.interests if most is None else most
        errors = find_failing(len(ids), failure, bound, lambda: self._records.runs >= last, pieces=self._limits.pieces)
        failing_interests = {ids[position]: error for position, error in errors.items()}
        if most is None and len(failing_interests) > self._limits.interests:
            # The retry leaves these interests out and finds the others.
            for interest, error in failing_interests.items():
                self._interests.count_failure_of(interest, error.message)
            raise first
        return failing_interests

    def _some_record_passes(self) -> bool:
        """Returns whether a sampled record passes with all interests: then the records that fail are at fault."""
        if self._records.count < 2:
            return False
        return any(
            self._records.failure(part, self._remaining_interests()) is None
            for part in self._single_records(self._limits.sample)
        )

    def _find_passing_record(self, ids: Sequence[InterestId], sample: Sequence[InterestId]) -> NewRowsByFolder | None:
        """Returns a record with which at least one interest passes."""
        # The sample was already tried with this single record.
        tried = set(sample) if self._records.count == 1 else set()
        have_succeeded = all(map(self._interests.has_succeeded, sample))
        for number, part in enumerate(self._single_records(self._limits.representatives)):
            for interest in spread(ids, self._limits.sample if have_succeeded or number else self._limits.wide_sample):
                if interest not in tried and self._records.failure(part, Ids(interest, interest)) is None:
                    return part
        return None

    def _single_records(self, count: int) -> Iterator[NewRowsByFolder]:
        """Yields single records, to be tried alone, of the largest dataset whose new rows fail without rows of other
        datasets. If there is none, yields single records of the largest dataset, each with all rows of the others."""
        filled = sorted(
            (folder for folder in self._records.rows if self._records.rows[folder].num_rows),
            key=lambda folder: -len(self._records.rows[folder]),
        )
        failed = [
            folder
            for folder in filled
            if self._records.failure(
                {**self._records.no_rows, folder: self._records.rows[folder]}, self._remaining_interests()
            )
        ]
        other_rows = self._records.no_rows if failed else self._records.rows
        for folder in (failed or filled)[:1]:
            for position in spread(range(self._records.rows[folder].num_rows), count):
                yield {**other_rows, folder: self._records.rows[folder].slice(position, 1)}
