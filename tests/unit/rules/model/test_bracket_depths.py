"""Levels of brackets, counted for many bytes at once: as a count byte by byte finds them."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.support.strategies import json_values
from tocsin.rules.model.bracket_depths import BracketState, bracket_table, follow_brackets

BRACKETS = bracket_table(b"[{", b"]}")


@given(st.lists(json_values()), st.integers(1, 20), st.integers(1, 5))
def test_the_end_of_a_value_is_found_wherever_the_bytes_are_cut(values: list[Any], size: int, chunk_bytes: int) -> None:
    text = json.dumps([*values, '\\" ] \\\\']).encode()
    at, state = 1, BracketState(1)
    while at < len(text):
        begin, piece = at, (text + b"]]")[at : at + size]
        moved, state = follow_brackets(piece, 0, state, BRACKETS, 1_000, chunk_bytes)
        at = begin + moved
        if not state.depth:
            break
    assert (at, state) == (len(text), BracketState(0))


def test_the_first_bracket_that_is_too_deep_ends_the_count() -> None:
    assert follow_brackets(b'"[[["[[],[[[', 0, BracketState(1), BRACKETS, 3) == (11, BracketState(4))
    assert follow_brackets(b'[]"', 0, BracketState(1), BRACKETS, 3) == (3, BracketState(1, in_string=True))
    assert follow_brackets(b'"\\', 0, BracketState(1), BRACKETS, 3) == (2, BracketState(1, True, True))
