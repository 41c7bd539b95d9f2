from __future__ import annotations

import io
from pathlib import Path

import pytest

from tests.support.run_traces import TraceList, read_trace
from tocsin.lab.engine.engine import SimulationEngine, TraceFile
from tocsin.lab.engine.network import LinkSettings, Network, SimulatedLink
from tocsin.lab.engine.streams import Streams
from tocsin.wire.errors import InputError


def random_walk(engine: SimulationEngine) -> None:
    """Two walkers that meet chance and each other."""
    for name in ("ada", "bob"):
        steps = engine.streams.of(name)

        def step(name: str = name, steps: object = steps) -> None:
            assert hasattr(steps, "exponential")
            engine.note("step", who=name)
            engine.after(float(steps.exponential(1.0)), step)

        engine.at(0.0, step)
    engine.run(20.0)


def traced(seed: int) -> str:
    out = io.StringIO()
    random_walk(SimulationEngine(seed, trace=TraceFile(out, seed=seed)))
    return out.getvalue()


def test_the_same_seed_writes_the_same_trace_and_another_seed_another() -> None:
    assert traced(3) == traced(3)
    assert traced(3).splitlines()[1:] != traced(4).splitlines()[1:]


def test_a_trace_is_read_back_as_it_was_noted(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(traced(3), "utf-8")
    header, notes = read_trace(path)
    kept = TraceList()
    random_walk(SimulationEngine(3, trace=kept))
    assert header == {"seed": 3}
    assert list(notes) == kept.notes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"scenario": 1}\n', "not a trace"),
        ("", "not a trace"),
        ('{"trace": 1, "seed": 1}\n{"at_s": 1}\n', "line 2: an event needs"),
        ('{"trace": 1, "seed": 1}\n[]\n', "line 2: not an object"),
        ('{"trace": 1, "seed": 1}\n{"at_s"', "not lines of JSON"),
    ],
)
def test_a_bad_trace_is_refused_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        list(read_trace(path)[1])


def test_an_error_says_at_which_moment_of_which_seed_it_happened() -> None:
    engine = SimulationEngine(8123)
    engine.at(2.5, lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError) as failed:
        engine.run()
    assert failed.value.__notes__ == ["at 2.5 s of the run with seed 8123"]


def test_ticks_fall_on_multiples_of_their_period() -> None:
    engine = SimulationEngine(0)
    ticks: list[float] = []
    engine.every(0.1, lambda: ticks.append(engine.now_s))
    engine.run(100.0)
    assert len(ticks) == 1_000
    assert ticks[-1] == 100.0


def test_a_feed_of_events_holds_only_the_next_one() -> None:
    engine = SimulationEngine(0)
    taken = 0
    seen: list[tuple[float, int]] = []

    def events() -> object:
        nonlocal taken
        for number in range(1_000):
            taken += 1
            yield float(number), (number,)

    engine.feed(events(), lambda number: seen.append((engine.now_s, number)))  # type: ignore[arg-type]
    engine.run(9.0)
    assert seen == [(float(number), number) for number in range(10)]
    assert taken == 11
    assert engine.next_s() == 10.0


def test_a_cancelled_event_is_not_what_comes_next() -> None:
    engine = SimulationEngine(0)
    engine.cancel(engine.at(1.0, list))
    assert engine.next_s() is None
    engine.run()
    assert engine.events == 0


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="seed"):
        Streams(-1)


def test_messages_share_a_links_bandwidth_and_add_its_latency() -> None:
    link = SimulatedLink(LinkSettings(latency_s=0.25, bandwidth_bytes_per_s=100.0))
    assert link.arrival_s(0.0, 100) == 1.25
    assert link.arrival_s(0.5, 50) == 1.75  # waits half a second for the first one
    assert link.arrival_s(10.0, 0) == 10.25
    assert link.waited_s == 0.5


def test_without_queueing_every_message_has_the_bandwidth_to_itself() -> None:
    link = SimulatedLink(LinkSettings(latency_s=0.25, bandwidth_bytes_per_s=100.0, queueing=False))
    assert [link.arrival_s(0.0, 100) for _ in range(3)] == [1.25] * 3


def test_two_directions_of_a_network_do_not_disturb_each_other() -> None:
    engine = SimulationEngine(0)
    network = Network(engine, lambda source, _target: LinkSettings(0.1 if source == "broker" else 0.2, 10.0))
    heard: list[tuple[str, float]] = []
    for source, target in (("broker", "ada"), ("ada", "broker"), ("broker", "ada")):
        network.send(source, target, 10, lambda who: heard.append((who, engine.now_s)), target)
    engine.run()
    assert heard == [("ada", 1.1), ("broker", 1.2), ("ada", 2.1)]
    assert network.bytes_by_link() == {("broker", "ada"): 20.0, ("ada", "broker"): 10.0}


@pytest.mark.parametrize("settings", [{"latency_s": -1.0}, {"latency_s": 0.0, "bandwidth_bytes_per_s": 0.0}])
def test_an_impossible_link_is_refused_with_the_name_of_its_setting(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{list(settings)[-1]}: must be"):
        LinkSettings(**settings)  # type: ignore[arg-type]
