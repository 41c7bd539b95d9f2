"""Callers that the engine refuses: for how long, and why."""

from __future__ import annotations

import pytest

from tocsin.cluster.engine.refused_askers import AFTER_REPLACEMENT_S, RefusedAskers
from tocsin.wire.errors import LimitError


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def wait_of(refused: RefusedAskers, asker: str) -> float:
    try:
        refused.check(asker)
    except LimitError as error:
        return float(error.details["retry_after_s"])
    return 0


def test_a_job_that_has_just_ended_may_take_a_moment_to_end_its_tasks() -> None:
    refused = RefusedAskers()
    refused.see_ended_jobs({"g1": "ann"})
    assert wait_of(refused, "ann") == 0
    refused.see_ended_jobs({"g1": "ann", "g2": "bob", "g3": ""})
    assert (wait_of(refused, "ann"), wait_of(refused, "bob")) == (30, 0)
    refused.see_ended_jobs({"g3": ""})
    assert wait_of(refused, "ann") == 0


def test_who_has_cost_an_engine_waits_for_ten_minutes() -> None:
    clock = Clock()
    refused = RefusedAskers(clock)
    refused.add_stuck("g1", "ann")
    refused.engine_replaced({"bob"})
    clock.now_s += AFTER_REPLACEMENT_S - 10
    assert [wait_of(refused, asker) for asker in ("ann", "bob", "cid")] == [10, 10, 0]
    clock.now_s += 10
    assert [wait_of(refused, asker) for asker in ("ann", "bob")] == [0, 0]


def test_who_takes_the_memory_again_waits_twice_as_long() -> None:
    clock = Clock()
    refused = RefusedAskers(clock)
    waits = []
    for _ in range(8):
        refused.memory_taken("ann")
        waits.append(wait_of(refused, "ann"))
        clock.now_s += waits[-1]
    assert waits == [10, 20, 40, 80, 160, 320, 600, 600]
    clock.now_s += 601
    refused.memory_taken("ann")
    assert wait_of(refused, "ann") == 10


def test_the_reason_is_told() -> None:
    refused = RefusedAskers()
    refused.memory_taken("ann")
    with pytest.raises(
        LimitError, match="an earlier statement was stopped because it took too much memory; ann has"
    ) as caught:
        refused.check("ann")
    assert caught.value.status == 429
