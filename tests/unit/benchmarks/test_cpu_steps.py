"""The benchmark's measure of CPU time: what was used beyond the usual, step by step."""

from __future__ import annotations

import pytest

from benchmarks.cpu_steps import extra_steps, is_flat


@pytest.mark.parametrize(
    ("steps", "usual", "extra"),
    [
        ([1.0, 1.0, 1.0], 1.0, [0.0, 0.0, 0.0]),
        ([1.0, 2.0, 1.0], 1.0, [0.0, 1.0, 0.0]),
        ([0.5, 1.5, 2.0], 1.0, [0.0, 0.0, 1.0]),
        ([2.0, 0.5, 0.5], 1.0, [1.0, 0.0, 0.0]),
    ],
)
def test_a_step_that_used_less_is_set_off_against_later_ones(
    steps: list[float], usual: float, extra: list[float]
) -> None:
    assert extra_steps(steps, usual) == pytest.approx(extra)


def test_servers_are_warm_when_three_stretches_use_the_same() -> None:
    assert not is_flat([1.0, 1.0], 0.1)
    assert not is_flat([1.0, 1.0, 1.2], 0.1)
    assert is_flat([3.0, 1.05, 1.0, 1.1], 0.1)
