"""Results of an execution that cannot be written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from tocsin.pipeline.channels.run_query import encode_results
from tocsin.rules.model import types as t
from tocsin.wire.errors import StatementError


def test_a_result_too_deep_for_json_is_an_error_that_the_poison_search_looks_for() -> None:
    def encode(*levels: int) -> list[bytes]:
        count = len(levels)
        numbers = pa.array(range(count), pa.int64())
        results = ["[" * depth + "]" * depth for depth in levels]
        table = pa.table({"interest": numbers, "place": numbers, "number": numbers, "result": results})
        return list(encode_results(table, cast("Any", SimpleNamespace(type=t.ANY)), set()).texts)

    assert encode(1, 2) == [b"[]", b"[[]]"]
    with pytest.raises(StatementError, match="a result is nested too deep to be written as JSON"):
        encode(1, 900)
