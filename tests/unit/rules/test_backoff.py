"""Back-off: how pauses grow, and what they heed."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tocsin.rules.backoff import BackOff


@given(st.floats(0, 100), st.integers(0, 99))
def test_pauses_double_up_to_the_longest_and_heed_what_is_asked_for(asked_s: float, seed: int) -> None:
    pauses = BackOff(1.0, 8.0, Random(seed))
    for whole_s in (1.0, 2.0, 4.0, 8.0, 8.0):
        assert asked_s + whole_s / 2 <= pauses.next_s(asked_s) <= asked_s + whole_s
    pauses.reset()
    assert pauses.next_s() <= 1.0
