"""A batch through the function of APPLY FUNCTION, and around the records on which it fails.

A query in SQL fails as a whole, whichever record it fails on. So the function is asked on which records it would (its
`failing`, where it has one): one more query, whatever their number. Where it cannot say, because it fails within a
subquery, the batch is cut into pieces, and those into pieces, until each record that it fails on stands alone: about
one query for each of them, and some for each that stands by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import structlog

from tocsin.language.translate.expressions import TranslationError
from tocsin.language.types.typed_sql import FunctionError
from tocsin.pipeline.landing.rows import RefusedRow
from tocsin.rules.model.values import MISSING
from tocsin.wire.errors import CapacityError, StatementError

log = structlog.get_logger()

# Of a batch, so many are run once more, each alone, to learn why; the others have failed as well.
REASONS: Final = 20
_PIECES: Final = 4
_TRIES_ALONE: Final = 2


@dataclass(frozen=True, slots=True)
class FailedRecord:
    """Stands for what the function would have made of a record."""

    reason: str


# The function of APPLY FUNCTION: records in, what it makes of each out (None: dropped; a list: several; or Failed).
# It may have a method `failing`, which says of each record whether it fails, or raises StatementError if it cannot.
Enrich = Callable[[pa.Table], Sequence[Any]]


class FailureIsolation:
    """One batch. `refused` are the records on which the function failed, by their places."""

    def __init__(self, enrich: Enrich, halted: Callable[[], bool], **about: Any) -> None:
        self._enrich = enrich
        self._halted = halted
        self._about = about
        self._reasons = 0
        self._is_told = False
        self._lacking = 0  # how often in a row the engine lacked something for one record
        self.refused: list[RefusedRow] = []
        self._made: list[tuple[int, Any]] = []

    def sift(self, rows: pa.Table) -> list[tuple[int, Any]]:
        """What the function made, in the order of the records, each with the place of its record."""
        if rows.num_rows:
            self._through(rows, range(rows.num_rows))
        if self._is_told:
            self._tell("a function failed on records, which are set aside", records=len(self.refused))
        return [(place, one) for place, value in sorted(self._made, key=_place) for one in _several(value)]

    def _through(self, rows: pa.Table, places: Sequence[int]) -> None:
        try:
            values = self._enrich(rows)
        except (FunctionError, TranslationError) as error:
            # It means nothing for records of this type, whatever is in them.
            self.refused += [RefusedRow(place, "", str(error)) for place in places]
        except CapacityError as error:
            if self._halted():
                raise
            self._in_parts(rows, places, error)
        except StatementError as error:
            if self._halted():
                raise  # its job was stopped, which says nothing about the records
            if rows.num_rows == 1:
                self.refused.append(RefusedRow(places[0], "", error.message))
                return
            if not self._is_told:
                self._is_told = True
                self._tell("a function fails on records of a batch", records=rows.num_rows, reason=error.message)
            self._apart(rows, places)
        else:
            self._lacking = 0
            for place, value in zip(places, values, strict=True):
                if isinstance(value, FailedRecord):
                    self.refused.append(RefusedRow(place, "", value.reason))
                else:
                    self._made.append((place, value))

    def _in_parts(self, rows: pa.Table, places: Sequence[int], error: CapacityError) -> None:
        """The engine has no room or time for so many. One record by itself has two tries more, and is then refused."""
        if rows.num_rows > 1:
            self._in_pieces(rows, places)
            return
        self._lacking += 1
        if self._lacking > _TRIES_ALONE:
            self._lacking = 0
            self.refused.append(RefusedRow(places[0], "", error.message))
        else:
            self._through(rows, places)

    def _in_pieces(self, rows: pa.Table, places: Sequence[int]) -> None:
        size = -(-rows.num_rows // _PIECES)
        for start in range(0, rows.num_rows, size):
            self._through(rows.slice(start, size), places[start : start + size])

    def _apart(self, rows: pa.Table, places: Sequence[int]) -> None:
        failing = self._failing(rows)
        bad = [i for i, one in enumerate(failing) if one]
        if not bad:
            self._in_pieces(rows, places)
            return
        good = [i for i, one in enumerate(failing) if not one]
        if good:
            self._through(rows.take(pa.array(good, pa.int64())), [places[i] for i in good])
        for i in bad:
            if self._reasons < REASONS:
                self._reasons += 1
                self._through(rows.slice(i, 1), [places[i]])
            else:
                reason = f"the function fails on this record, and on {len(bad) - 1} others of its batch"
                self.refused.append(RefusedRow(places[i], "", reason))

    def _failing(self, rows: pa.Table) -> Sequence[bool]:
        told: Callable[[pa.Table], Sequence[bool]] | None = getattr(self._enrich, "failing", None)
        if told is None:
            return ()
        try:
            return told(rows)
        except (StatementError, CapacityError):
            if self._halted():
                raise
            return ()

    def _tell(self, event: str, **about: Any) -> None:
        with suppress(Exception):
            log.warning(event, **self._about, **about)


def _place(made: tuple[int, Any]) -> int:
    return made[0]


def _several(value: Any) -> Iterator[Any]:
    if value is None or value is MISSING:
        return
    if isinstance(value, list):
        for one in value:
            yield from _several(one)
    else:
        yield value
