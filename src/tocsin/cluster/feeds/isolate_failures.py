"""Runs a batch through the function of APPLY FUNCTION and isolates the records on which it fails.

A SQL query fails as a whole, whichever record it fails on. So one more query (`failing`) asks which records fail,
whatever their number. If that query fails too, because the error is within a subquery, the batch is split into pieces
again and again until each failing record is alone. That takes some queries for each failing record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import structlog

from tocsin.language.translate.expressions import TranslationError
from tocsin.language.types.typed_sql import FunctionError
from tocsin.pipeline.landing.rows import RefusedRow
from tocsin.rules.model.values import MISSING
from tocsin.wire.errors import CapacityError, StatementError

_log = structlog.get_logger()

_PIECES: Final = 4
_TRIES_ALONE: Final = 2


@dataclass(frozen=True, slots=True)
class FailedRecord:
    """The output of a function for a record on which it failed."""

    reason: str


# The function of APPLY FUNCTION. It takes records and returns one output for each: None drops the record, a list is
# several records, a FailedRecord is a failure. It may have a method `failing`, which returns for each record whether it
# fails, or raises StatementError.
Enrich = Callable[[pa.Table], Sequence[Any]]


class FailureIsolation:
    """Handles one batch. `refused` lists the records on which the function failed, by their indexes."""

    def __init__(self, enrich: Enrich, halted: Callable[[], bool], most_reasons: int, **about: Any) -> None:
        self._enrich = enrich
        self._halted = halted
        self._about = about
        self._reasons_left = most_reasons
        self._is_logged = False
        self._lacking = 0  # consecutive capacity errors of one record
        self.refused: list[RefusedRow] = []
        self._outputs: list[tuple[int, Any]] = []

    def sift(self, rows: pa.Table) -> list[tuple[int, Any]]:
        """Returns the function's outputs in the order of the records, each with the index of its record."""
        if rows.num_rows:
            self._apply(rows, range(rows.num_rows))
        if self._is_logged:
            _log.warning("a function failed on records, which are set aside", **self._about, records=len(self.refused))
        return [(index, output) for index, value in sorted(self._outputs, key=_index) for output in _several(value)]

    def _apply(self, rows: pa.Table, indexes: Sequence[int]) -> None:
        try:
            values = self._enrich(rows)
        except (FunctionError, TranslationError) as error:
            # The function does not fit this type of records, so it fails on every one.
            self.refused += [RefusedRow(index, "", str(error)) for index in indexes]
        except CapacityError as error:
            if self._halted():
                raise
            self._in_parts(rows, indexes, error)
        except StatementError as error:
            if self._halted():
                raise  # the feed's end stopped the Spark job, which says nothing about the records
            if rows.num_rows == 1:
                self.refused.append(RefusedRow(indexes[0], "", error.message))
                return
            if not self._is_logged:
                self._is_logged = True
                _log.warning(
                    "a function fails on records of a batch", **self._about, records=rows.num_rows, reason=error.message
                )
            self._apply_apart(rows, indexes)
        else:
            self._lacking = 0
            for index, value in zip(indexes, values, strict=True):
                if isinstance(value, FailedRecord):
                    self.refused.append(RefusedRow(index, "", value.reason))
                else:
                    self._outputs.append((index, value))

    def _in_parts(self, rows: pa.Table, indexes: Sequence[int], error: CapacityError) -> None:
        """Splits a batch that exceeds the engine's memory or time. A single record is refused after two retries."""
        if rows.num_rows > 1:
            self._in_pieces(rows, indexes)
            return
        self._lacking += 1
        if self._lacking > _TRIES_ALONE:
            self._lacking = 0
            self.refused.append(RefusedRow(indexes[0], "", error.message))
        else:
            self._apply(rows, indexes)

    def _in_pieces(self, rows: pa.Table, indexes: Sequence[int]) -> None:
        size = -(-rows.num_rows // _PIECES)
        for start in range(0, rows.num_rows, size):
            self._apply(rows.slice(start, size), indexes[start : start + size])

    def _apply_apart(self, rows: pa.Table, indexes: Sequence[int]) -> None:
        failing = self._find_failing(rows)
        failing_indexes = [index for index, fails in enumerate(failing) if fails]
        if not failing_indexes:
            self._in_pieces(rows, indexes)
            return
        passing_indexes = [index for index, fails in enumerate(failing) if not fails]
        if passing_indexes:
            self._apply(rows.take(pa.array(passing_indexes, pa.int64())), [indexes[i] for i in passing_indexes])
        for position in failing_indexes:
            if self._reasons_left:
                self._reasons_left -= 1
                self._apply(rows.slice(position, 1), [indexes[position]])
            else:
                reason = f"the function fails on this record, and on {len(failing_indexes) - 1} others of its batch"
                self.refused.append(RefusedRow(indexes[position], "", reason))

    def _find_failing(self, rows: pa.Table) -> Sequence[bool]:
        find_failing: Callable[[pa.Table], Sequence[bool]] | None = getattr(self._enrich, "failing", None)
        if find_failing is None:
            return ()
        try:
            return find_failing(rows)
        except (StatementError, CapacityError):
            if self._halted():
                raise
            return ()


def _index(made: tuple[int, Any]) -> int:
    return made[0]


def _several(value: Any) -> Iterator[Any]:
    if value is None or value is MISSING:
        return
    if isinstance(value, list):
        for element in value:
            yield from _several(element)
    else:
        yield value
