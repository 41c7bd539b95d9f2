"""Errors of Spark in words that a user of this language knows."""

from __future__ import annotations

import pytest

from tocsin.pipeline.analysis import reason


@pytest.mark.parametrize(
    ("spark", "ours"),
    [
        (
            (
                '[CAST_INVALID_INPUT] The value \'x\' of the type "STRING" cannot be cast to "BIGINT" because it is '
                "malformed. Correct the value as per the syntax, or use `try_cast`. SQLSTATE: 22018"
            ),
            "'x' is no bigint; try_cast gives NULL for it",
        ),
        (
            (
                '[DATATYPE_MISMATCH.UNEXPECTED_INPUT_TYPE] Cannot resolve "trunc(2.59)" due to data type mismatch: The '
                'first parameter requires the "DATE" type, however "2.59" has the type "DOUBLE". SQLSTATE: 42K09'
            ),
            "the first argument must be date, not double",
        ),
        (
            (
                '[DATATYPE_MISMATCH.UNEXPECTED_INPUT_TYPE] The second parameter requires the ("INT" or "BIGINT") type, '
                'however "x" has the type "VARIANT".'
            ),
            "the second argument must be integer or bigint, not any",
        ),
        (
            "[WRONG_NUM_ARGS.WITHOUT_SUGGESTION] The `replace` requires [2, 3] parameters but the actual number is 4.",
            "replace takes 2 or 3 arguments, got 4",
        ),
        (
            "[WRONG_NUM_ARGS.WITHOUT_SUGGESTION] The `ascii` requires 1 parameters but the actual number is 2.",
            "ascii takes 1 argument, got 2",
        ),
        (
            "[ARITHMETIC_OVERFLOW] overflow. Use 'try_add' to tolerate overflow and return NULL instead.",
            (
                "a number is too large: a bigint has 64 bits; compute with double(x), or try_add(a, b) and the like, "
                "which give NULL"
            ),
        ),
        (
            '[DATATYPE_MISMATCH.INVALID_ORDERING_TYPE] The `greatest` does not support ordering on type "VARIANT".',
            "greatest needs values that have an order",
        ),
    ],
)
def test_an_error_names_our_types_and_no_settings(spark: str, ours: str) -> None:
    assert reason(spark) == ours
