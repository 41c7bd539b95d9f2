"""Which statement is stopped when the engine is short of memory."""

from __future__ import annotations

from tocsin.cluster.engine.heap_watch import HeapWatch, HeavyStatement
from tocsin.pipeline.running_tasks import EngineLoad, RunningTask, parse_load

LIMIT = 1_000
HEAVY, LIGHT = RunningTask(False, 400, "g1", "ann"), RunningTask(False, 300, "g2", "bob")


def load_of(*tasks: RunningTask, collection_ms: int, heap_bytes: int = 900) -> EngineLoad:
    return EngineLoad(tasks, heap_bytes, LIMIT, collection_ms)


def find(*tasks: RunningTask, collection_ms: int = 1_000, heap_bytes: int = 900) -> HeavyStatement | None:
    """Two looks with two seconds between them."""
    watch = HeapWatch()
    assert watch.find_heaviest(1, load_of(*tasks, collection_ms=0), 10.0) is None, "nothing to compare with"
    return watch.find_heaviest(1, load_of(*tasks, collection_ms=collection_ms, heap_bytes=heap_bytes), 12.0)


def test_the_statement_that_has_allocated_the_most_in_all_its_tasks_is_stopped() -> None:
    assert find(HEAVY, LIGHT) == HeavyStatement("g1", "ann")
    assert find(HEAVY, LIGHT, LIGHT) == HeavyStatement("g2", "bob")


def test_nobody_is_stopped_while_collections_are_few_or_the_heap_has_room() -> None:
    assert find(HEAVY, LIGHT, collection_ms=500) is None
    assert find(HEAVY, LIGHT, heap_bytes=600) is None


def test_executions_landings_small_statements_and_those_that_are_over_are_never_stopped() -> None:
    assert find(RunningTask(False, 900, "g", ""), RunningTask(True, 900, "g1", "ann")) is None
    assert find(RunningTask(False, 100, "g1", "ann")) is None


def test_the_collections_of_the_engine_before_do_not_count() -> None:
    watch = HeapWatch()
    watch.find_heaviest(1, load_of(HEAVY, collection_ms=0), 10.0)
    assert watch.find_heaviest(2, load_of(HEAVY, collection_ms=5_000), 12.0) is None


def test_a_load_is_read_from_the_text_that_the_jvm_writes() -> None:
    assert parse_load("7\t9\t3") == EngineLoad([], 7, 9, 3)
    text = "7\t9\t3\n1\t12\tg1\tann b\n0\t0\t\t"
    assert parse_load(text).tasks == [RunningTask(True, 12, "g1", "ann b"), RunningTask(False, 0, "", "")]
