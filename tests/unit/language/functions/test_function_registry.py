"""Names of functions: which can be called, and which are suggested."""

from __future__ import annotations

import pytest

from tocsin.language.functions.function_registry import CALLABLE, COMPARING, suggest_function
from tocsin.language.translate import comparing_calls


@pytest.mark.parametrize("name", ["array_any", "is_bar", "reflect", "array_swap"])
def test_a_name_of_other_words_is_not_suggested(name: str) -> None:
    assert "did you mean" not in suggest_function(name, CALLABLE)


@pytest.mark.parametrize(
    ("name", "known"), [("is_arry", "is_array"), ("array_lenght", "array_length"), ("object_name", "object_names")]
)
def test_a_misspelt_name_is_suggested(name: str, known: str) -> None:
    assert suggest_function(name, CALLABLE).startswith(f"did you mean {known}?")


def test_every_comparing_function_is_registered() -> None:
    assert set(comparing_calls.FUNCTIONS) == COMPARING
