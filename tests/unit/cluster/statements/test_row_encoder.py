from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pytest

from tocsin.cluster.statements.row_encoder import ENCODED_AT_ONCE_ROWS, RowEncoder
from tocsin.language.translate.translator import TranslatedQuery
from tocsin.rules.model import types as t
from tocsin.wire.errors import StatementError


class CountedTurn:
    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> None:
        self.count += 1

    def __exit__(self, *_: object) -> None: ...


def test_statements_take_turns_at_encoding_a_few_rows_at_a_time() -> None:
    turn = CountedTurn()
    numbers = range(2 * ENCODED_AT_ONCE_ROWS + 1)
    rows = pa.table({"value": pa.array(numbers, pa.int64())})
    made = RowEncoder(turn).encode(rows, TranslatedQuery("", t.BIGINT, True, cast("Any", None)))
    assert made == [str(number).encode() for number in numbers]
    assert turn.count == 3


def test_a_row_too_deep_for_json_is_the_statements_fault() -> None:
    def encode(levels: int) -> list[bytes]:
        rows = pa.table({"value": ["[" * levels + "]" * levels]})
        return RowEncoder().encode(rows, TranslatedQuery("", t.ANY, True, cast("Any", None)))

    assert encode(254) == [b"[" * 254 + b"]" * 254]
    for levels in (255, 900):
        with pytest.raises(StatementError, match="a result is nested too deep to be written as JSON"):
            encode(levels)
