"""The live half of an experiment, without anything live: what is asked for, stated, kept and reported."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tocsin.cli.commands import lab as cli_lab
from tocsin.cli.commands import lab_scenarios as cli_lab_scenarios
from tocsin.lab.engine.streams import Streams
from tocsin.lab.experiments import registry
from tocsin.lab.experiments.edge_caching_prototype.live import hour_run, run_live, schema
from tocsin.lab.experiments.edge_caching_prototype.live import options as options_of
from tocsin.lab.experiments.edge_caching_prototype.live.clients import ClientFigures
from tocsin.lab.experiments.edge_caching_prototype.live.hour_run import LiveHour
from tocsin.lab.experiments.edge_caching_prototype.live.options import LiveCell, parse_options
from tocsin.lab.experiments.edge_caching_prototype.live.stated_figures import StatedFigures, expect, time_channels
from tocsin.lab.scenarios.city import CHANNELS, City, city_scenario
from tocsin.lab.scenarios.scenario import LogInStep, Scenario, Step, save
from tocsin.lab.simulators.fast_broker import core_settings
from tocsin.lab.simulators.network_broker import Links, simulate_scenario
from tocsin.lab.workloads.city_channels import find
from tocsin.settings import Settings
from tocsin.wire.errors import InputError, NotFoundError

TINY = {"subscribers": "6", "subscriptions": "20", "span_s": "120", "join_s": "10", "speed": "20"}


def test_the_channels_have_the_periods_of_table_iii_at_that_speed() -> None:
    text = schema.script(4.0)
    found = re.findall(r'CREATE CONTINUOUS CHANNEL (\w+)\([^)]*\)\s+PERIOD "PT([\d.]+)S"', text)
    assert {name: float(period) for name, period in found} == {name: period / 4 for name, _, period in CHANNELS}
    assert "{{" not in text
    with pytest.raises(ValueError, match=r"shorter than 0\.1 s"):
        schema.script(1_000.0)


def test_what_a_policy_measures_in_seconds_shrinks_with_the_hour() -> None:
    cell = LiveCell("ttl", 100.0)
    told = cell.settings(4.0)
    variables = {f"TOCSIN_{path.replace('.', '__').upper()}": value for path, value in told.items()}
    broker = Settings.load(None, variables).broker
    assert broker.cache.caching() == replace(
        cell.to_caching_settings(), fresh_s=0.5, ttl_every_s=75.0, ttl_first_s=150.0, ttl_cap_s=150.0,
        rate_window_s=75.0, latency_first_s=0.125,
    )  # fmt: skip
    assert broker.delivery.grace_s == 15.0
    assert LiveCell("nc", 0.0).to_caching_settings().eviction == "none"


def test_a_live_run_is_asked_for_by_policies_sizes_and_a_city() -> None:
    asked = {"policy": "nc,lsc,ttl", "size_kb": "50,100", "speed": "2", "subscribers": "10", "subscriptions": "20"}
    wanted = parse_options(asked, quick=False, seed=3)
    assert [cell.name for cell in wanted.cells()] == ["nc", "lsc-50", "lsc-100", "ttl-50", "ttl-100"]
    assert (wanted.city.subscribers, wanted.city.span_s, wanted.speed) == (10, 3600.0, 2.0)
    assert len(parse_options({}, quick=False, seed=1).cells()) >= 7


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("policy", "mru", "no 'mru'"),
        ("speed", "0", "speed"),
        ("speed", "fast", "speed"),
        ("at_once", "1.5", "at_once"),
        ("at_once", "1000", "at_once"),
        ("size_kb", "10,-1", "size_kb"),
        ("colour", "red", "colour"),
    ],
)
def test_a_setting_of_a_live_run_that_does_not_fit_is_named(name: str, value: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_options({name: value}, quick=True, seed=1)


def test_timing_moves_results_but_loses_none_of_them() -> None:
    made = city_scenario(City(subscribers=20, subscriptions=80, span_s=600.0, join_s=1.0), 2)
    plain, moved = find(made), time_channels(made, Streams(1).of("channels"), 30.0)
    assert len(moved.found) == pytest.approx(len(plain.found), rel=0.05)
    assert [result.at_s for result in moved.found] == sorted(result.at_s for result in moved.found)
    assert moved.interests == plain.interests
    assert time_channels(made, Streams(1).of("channels"), 30.0).found == moved.found


def test_what_is_stated_of_an_hour_holds_what_an_undisturbed_simulation_gives() -> None:
    made = city_scenario(City(subscribers=20, subscriptions=80, span_s=600.0, join_s=30.0), 2)
    cells = [LiveCell("nc", 0.0), LiveCell("lsc", 2.0)]
    told = expect(made, 600.0, cells, late_s=10.0, seed=1)
    results, links = find(made).list_results(), Links.of_round_trips(0.01, 0.1)
    assert told == expect(made, 600.0, cells, late_s=10.0, seed=1)
    for cell in cells:
        for figure in told[cell].values():
            assert figure.low <= figure.mean <= figure.high
        figures = simulate_scenario(
            made, results, core_settings(cell.to_caching_settings()), links, until_s=600.0
        ).broker.caches.counters
        assert told[cell]["hit_ratio"].holds(figures.hit_ratio)
        assert told[cell]["miss_kb"].holds(figures.miss_bytes / 1e3)
        assert told[cell]["fetch_kb"].holds((figures.arrived_bytes + figures.fetched_bytes) / 1e3)
    assert told[cells[0]]["hit_ratio"].mean == 0
    assert told[cells[1]]["hit_ratio"].mean > 0
    assert told[cells[0]]["fetch_kb"].mean > told[cells[1]]["fetch_kb"].mean
    assert StatedFigures(1.0, 0.9, 1.2).holds(1.2)
    assert not StatedFigures(1.0, 0.9, 1.2).holds(0.8)


class Hours:
    """Stands for hours on the live system: with the stated figures, or with `off` hits less."""

    def __init__(self, stated: dict[str, float], *, off: float = 0.0, lag_s: float = 1.0, stop: str = "") -> None:
        self.lived: list[list[str]] = []
        self._stated, self._off, self._lag_s, self._stop = stated, off, lag_s, stop

    async def __call__(
        self, _made: Any, _span_s: float, cells: list[LiveCell], _speed: float, **_: Any
    ) -> dict[LiveCell, LiveHour]:
        if self._stop in {cell.name for cell in cells}:
            raise KeyboardInterrupt
        self.lived.append([cell.name for cell in cells])
        return {cell: self._one(cell) for cell in cells}

    def _one(self, cell: LiveCell) -> LiveHour:
        told = self._stated
        hits = 0.0 if cell.policy == "nc" else 1_000 * told["hit_ratio"] - self._off
        figures = {
            "hits": hits, "misses": 1_000 - hits, "arrived": told["found"], "miss_bytes": told["miss_kb"] * 1e3,
            "fetched_bytes": told["fetch_kb"] * 1e3, "most_bytes": 1.0, "hit_ratio": 0.0,
        }  # fmt: skip
        figures |= {"evicted": 0.0, "expired": 0.0}
        return LiveHour(
            figures, ClientFigures(5, 10, 0.5), 0.1, (0.5, self._lag_s, 2.0), (9.0, 1.0, 2.0), replayed=True
        )


def run(out: Path, hours: Hours, **more: str) -> Any:
    settings = {**TINY, "policy": "lsc", "size_kb": "2,3", "at_once": "1", **more}
    return run_live.run(settings, out, quick=False, seed=1, fresh=False, say=lambda _: None, run_hour=hours)


@pytest.fixture
def stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    said: list[dict[str, float]] = []
    real = run_live.expect

    def noted(*given: Any, **more: Any) -> Any:
        told = real(*given, **more)
        said.extend({name: figure.mean for name, figure in figures.items()} for figures in told.values())
        return told

    with monkeypatch.context() as patched:
        patched.setattr(run_live, "expect", noted)
        run(tmp_path / "first", Hours({"hit_ratio": 0, "found": 0, "miss_kb": 0, "fetch_kb": 0}), size_kb="2")
    return said[0]


def test_finished_hours_are_kept_when_a_run_is_stopped_and_not_lived_again(
    tmp_path: Path, stated: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = Hours(stated, stop="lsc-3")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, stopped)
    going_on = Hours(stated)
    done = run(tmp_path, going_on)
    assert (stopped.lived, going_on.lived) == ([["lsc-2"]], [["lsc-3"]])
    assert done.compared == 8
    again = Hours(stated)
    run(tmp_path, again)
    assert again.lived == []
    text = done.report.read_text("utf-8")
    assert "| lsc | 2 | hit ratio |" in text
    assert "`join_s` is 10.0 (there 120.0)" in text
    assert "latencies are not compared" in text
    assert f", code {parse_options({}, quick=False, seed=1).code[:8]}. This file is generated" in text
    assert "--set 'policy=lsc'" in text or "--set policy=lsc" in text
    assert (done.report.parent / "results.csv").read_text("utf-8").count("\n") == 3
    elsewhere = run_live.report(tmp_path, quick=False, to=tmp_path / "docs")
    assert elsewhere.report.read_text("utf-8") == text
    # Other code: what was lived is still reported, and lived again when it is asked for.
    monkeypatch.setattr(options_of, "code_digest", lambda _: "other")
    assert run_live.report(tmp_path, quick=False, to=tmp_path / "docs").report.read_text("utf-8") == text
    run(tmp_path, again)
    assert again.lived == [["lsc-2"], ["lsc-3"]]


def test_live_and_simulation_agree_only_where_every_figure_lies_as_stated_and_in_time(
    tmp_path: Path, stated: dict[str, float]
) -> None:
    good = run(tmp_path / "good", Hours(stated), size_kb="2")
    assert (good.verdict, good.good, good.agreed) == ("agree", True, 4)
    off = run(tmp_path / "off", Hours(stated, off=400.0), size_kb="2")
    assert (off.verdict, off.good, off.agreed) == ("DISAGREE", False, 3)
    slow = run(tmp_path / "slow", Hours(stated, lag_s=61.0), size_kb="2")
    assert (slow.good, slow.in_time) == (False, False)
    assert "not judged" in slow.verdict


def test_a_scenario_is_played_to_live_brokers_as_to_simulated_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "city.jsonl"
    save(city_scenario(City(subscribers=6, subscriptions=20, span_s=120.0, join_s=10.0), 1), file)
    hours = Hours({"hit_ratio": 0.25, "found": 7, "miss_kb": 3, "fetch_kb": 4})
    monkeypatch.setattr(hour_run, "run_hour", hours)
    assert cli_lab_scenarios.play(file, policy="nc,lsc", size_kb="2", live=True, speed=20.0, out=tmp_path) == 0
    assert hours.lived == [["nc", "lsc-2"]]
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:5]]
    assert [row[:3] for row in rows] == [
        ["simulated", "nc", "0"], ["simulated", "lsc", "2"], ["live", "nc", "0"], ["live", "lsc", "2"],
    ]  # fmt: skip
    assert rows[3][3:5] == ["0.25", "10"]
    with pytest.raises(InputError, match=r"shorter than 0\.1 s"):
        cli_lab_scenarios.play(file, live=True, speed=1e6, out=tmp_path)
    save(Scenario({}, (Step(0.0, LogInStep("agency")),)), file)
    with pytest.raises(InputError, match="agency is a reserved name"):
        cli_lab_scenarios.play(file, live=True, out=tmp_path)


def test_an_experiment_without_a_live_half_says_so_and_one_without_the_live_system_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(NotFoundError, match="queues does not run live"):
        registry.live("queues")
    with pytest.raises(NotFoundError, match="no finished live run"):
        cli_lab.report("edge-caching-prototype", live=True, out=tmp_path)
    with pytest.raises(InputError, match="--replications"):
        cli_lab.run("edge-caching-prototype", live=True, replications=2, out=tmp_path)
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyspark" else real(name))
    with pytest.raises(InputError, match="missing: pyspark") as caught:
        cli_lab.run("edge-caching-prototype", live=True, out=tmp_path)
    assert "tocsin[lab,cluster]" in caught.value.hint


@pytest.mark.parametrize("broken", ["", "[]", "{}", '{"settings": 1, "seed": 1, "code": ""}'])
def test_a_broken_live_run_is_said_without_a_traceback(tmp_path: Path, broken: str) -> None:
    folder = tmp_path / "edge-caching-prototype-live"
    folder.mkdir()
    (folder / "run.json").write_text(broken)
    with pytest.raises(InputError, match=r"run\.json or stated\.json is broken"):
        run_live.report(tmp_path, quick=False, to=None)
