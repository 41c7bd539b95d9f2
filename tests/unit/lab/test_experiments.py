"""The frame around experiments: plans, numbers, verdicts, and runs that are the same however they are run."""

from __future__ import annotations

import inspect
import math
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.toy_experiment import HIGH, LOW, TOY, TOY_PLACE, toy_model, toy_results
from tocsin.lab.experiments import queues, registry
from tocsin.lab.experiments.cells import CellError, code_digest, code_text, model_files, replay_hint, run
from tocsin.lab.experiments.comparisons import is_more, is_near, is_ordered, judge, judge_by_choice
from tocsin.lab.experiments.declaration import (
    Claim,
    Experiment,
    ExperimentParameter,
    Judgement,
    Plot,
    Sweep,
    Value,
    along,
)
from tocsin.lab.experiments.journal import FILE, Journal, look
from tocsin.lab.experiments.plan import Plan, plan
from tocsin.lab.experiments.report import write_report
from tocsin.lab.experiments.run_experiment import load_finished_run, run_and_report
from tocsin.lab.experiments.statistics import Estimate, estimate, student_t
from tocsin.wire.errors import ConflictError, InputError

QUEUES = registry.reference("queues")
SMALL = {"customers": "200", "warm_up": "10", "load": "0.3,0.5"}


# ---------------------------------------------------------------- plans


def test_a_plan_is_the_product_of_the_axes_times_the_replications() -> None:
    cells = list(plan(TOY, seed=7).cells())
    assert len(cells) == (2 * 3 + 2) * 3
    assert [cell.seed for cell in cells[:3]] == [7, 8, 9]
    assert dict(cells[-1].values) == {"policy": "high", "size": 6.0, "on": False}


def test_every_policy_and_size_of_a_replication_has_the_same_seed() -> None:
    by_replication: dict[int, set[int]] = {}
    for cell in plan(TOY).cells():
        by_replication.setdefault(cell.replication, set()).add(cell.seed)
    assert by_replication == {0: {1}, 1: {2}, 2: {3}}


def test_a_quick_plan_has_the_quick_points_values_and_replications() -> None:
    quick = plan(TOY, quick=True)
    assert dict(quick.values)["size"] == 2.0
    assert len(list(quick.cells())) == (2 * 2 + 2) * 2


def test_settings_replace_what_a_sweep_varies_and_choose_among_pairs() -> None:
    cells = list(plan(TOY, settings={"policy": "high", "on": "false"}, replications=1).cells())
    assert [(cell.sweep, dict(cell.values)["size"]) for cell in cells] == [
        ("sizes", 1.0),
        ("sizes", 2.0),
        ("sizes", 3.0),
        ("pairs", 6.0),
    ]
    assert all(dict(cell.values)["on"] is False for cell in cells)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"colour": "red"}, "toy has no parameter colour"),
        ({"size": "big"}, "size: must be a number"),
        ({"on": "maybe"}, "on: must be true or false"),
        ({"on": "true,false"}, "on: one value only"),
        ({"size": "1,2,1.0"}, "size: each value once, got 1,2,1.0"),
    ],
)
def test_a_setting_that_does_not_fit_is_refused_with_its_name(settings: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        plan(TOY, settings=settings)


def test_a_sweep_that_the_settings_contradict_is_left_out() -> None:
    assert [sweep.name for sweep in plan(TOY, settings={"on": "true"}).sweeps] == ["sizes"]
    assert [sweep.name for sweep in plan(TOY, settings={"policy": "other"}).sweeps] == ["sizes"]
    pairs = replace(TOY, sweeps=TOY.sweeps[1:], plots=())
    with pytest.raises(InputError, match="no sweep of toy is left"):
        plan(pairs, settings={"policy": "other"})


def test_a_quick_run_may_hold_other_values_fast() -> None:
    toy = replace(TOY, sweeps=(TOY.sweeps[0], replace(TOY.sweeps[1], quick_fixed={})))
    held = [
        {dict(cell.values)["on"] for cell in plan(toy, quick=quick).cells() if cell.sweep == "pairs"}
        for quick in (False, True)
    ]
    assert held == [{False}, {True}]


def test_values_that_do_not_go_together_in_one_of_the_sweeps_are_refused_before_anything_runs(tmp_path: Path) -> None:
    def check(values: Mapping[str, Value]) -> None:
        if not values["on"] and float(values["size"]) > 5:
            raise InputError("size: must be at most 5 while off", hint="--set size=5")

    with pytest.raises(InputError, match="sweep pairs: size: must be at most 5 while off") as refused:
        run(plan(replace(TOY, check=check)), TOY_PLACE, tmp_path / "run")
    assert refused.value.hint == "--set size=5"
    assert not (tmp_path / "run").exists()
    run(plan(replace(TOY, check=check), settings={"policy": "low"}), TOY_PLACE, tmp_path / "run")


@pytest.mark.parametrize("wrong", [{"replications": 0}, {"seed": -1}])
def test_impossible_numbers_of_a_plan_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        plan(TOY, **wrong)  # type: ignore[arg-type]


def test_a_declaration_that_names_what_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="no parameter"):
        Experiment("x", "", "", "", toy_model, (), (Sweep("s", "", (along("a", (1,)),)),), ())
    with pytest.raises(ValueError, match="plot p shows"):
        Experiment(
            "x",
            "",
            "",
            "",
            toy_model,
            (ExperimentParameter("a", 1, ""),),
            (Sweep("s", "", (along("a", (1,)),)),),
            (),
            (Plot("p", "", "s", "a", "m"),),
        )


# ---------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("confidence", "freedom", "t"),
    [
        (0.95, 1, 12.7062),
        (0.95, 2, 4.30265),
        (0.95, 9, 2.26216),
        (0.99, 4, 4.60409),
        (0.9, 30, 1.69726),
        (0.95, 10**6, 1.95997),
    ],
)
def test_students_t_is_that_of_the_tables(confidence: float, freedom: int, t: float) -> None:
    assert student_t(confidence, freedom) == pytest.approx(t, abs=1e-5)


def test_an_estimate_is_the_mean_and_half_its_interval() -> None:
    found = estimate([1.0, 2.0, 3.0])
    assert (found.mean, found.runs) == (2.0, 3)
    assert found.half_width == pytest.approx(4.30265 / math.sqrt(3), rel=1e-5)
    assert estimate([5.0]) == Estimate(5.0, math.inf, 1)
    assert str(estimate([2.0, 2.0])) == "2"
    assert "one run" in str(estimate([2.0]))


def test_a_difference_is_taken_seed_by_seed(tmp_path: Path) -> None:
    results = toy_results(tmp_path)
    assert results.difference("score", "sizes", HIGH, LOW) == Estimate(10.0, 0.0, 3)
    assert results.mean("score", "sizes", **HIGH).half_width > 0


def test_an_order_counts_only_beyond_its_error(tmp_path: Path) -> None:
    results = toy_results(tmp_path)
    points: list[Mapping[str, float]] = [{"size": size} for size in (1.0, 2.0, 3.0)]
    assert is_ordered(results, "score", "sizes", points, where={"policy": "low"})
    assert is_ordered(results, "score", "sizes", points[::-1], where={"policy": "low"}) is False
    assert is_more(results, "score", "sizes", LOW, LOW) is None
    assert is_near(Estimate(1.0, 0.1, 3), 1.0, within=0.2)
    assert not is_near(Estimate(2.0, 0.3, 3), 1.0, within=0.2)


@pytest.mark.parametrize(
    ("usual", "other", "verdict"),
    [
        (True, True, "reproduced"),
        (False, False, "not reproduced"),
        (True, False, "depends"),
        (False, True, "depends"),
        (None, False, "not judged"),
        (False, None, "not judged"),
    ],
)
def test_what_is_open_is_neither_yes_nor_no(
    tmp_path: Path, usual: bool | None, other: bool | None, verdict: str
) -> None:
    claim = Claim(
        "one", "", "", lambda _: judge_by_choice(usual, other, "1 ± 2", depends_on="a choice", refuted_by="a reason")
    )
    found = judge(claim, toy_results(tmp_path))
    assert found.verdict == verdict
    assert bool(found.because) == (verdict != "reproduced")


def test_an_interval_too_wide_for_a_verdict_gives_none(tmp_path: Path) -> None:
    wide = Claim("wide", "", "", lambda _: Judgement(str(is_near(Estimate(1.0, 0.3, 3), 1.0, within=0.2)), ""))  # type: ignore[arg-type]
    judged = judge(wide, toy_results(tmp_path))
    assert judged.verdict == "not judged"
    assert "take more replications" in judged.because


def test_a_claim_without_its_cells_is_not_judged(tmp_path: Path) -> None:
    results, _ = run(plan(TOY, settings={"policy": "low"}), TOY_PLACE, tmp_path)
    judged = judge(TOY.claims[0], results)
    assert judged.verdict == "not judged"
    assert "policy = high" in judged.because


def test_a_single_run_judges_nothing(tmp_path: Path) -> None:
    results, _ = run(plan(TOY, replications=1), TOY_PLACE, tmp_path)
    assert judge(TOY.claims[0], results) == Judgement("not judged", "", "one run of each point has no error")


# ---------------------------------------------------------------- running


def outputs(folder: Path) -> dict[str, bytes]:
    """Every file of a run but its journal, whose lines stand in the order of finishing."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != FILE]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_the_same_seed_gives_the_same_bytes_on_one_process_and_on_two(tmp_path: Path) -> None:
    wanted = plan(queues.EXPERIMENT, quick=True, settings=SMALL, replications=2)
    one = run_and_report(wanted, QUEUES, tmp_path / "one", processes=1)
    two = run_and_report(wanted, QUEUES, tmp_path / "two", processes=2)
    assert outputs(one.folder) == outputs(two.folder)
    assert set(outputs(one.folder)) == {
        "results.csv",
        "results.parquet",
        "run.json",
        "report.md",
        "plots/ratio.png",
        "plots/ratio.svg",
    }


def test_finished_cells_are_not_run_again(tmp_path: Path) -> None:
    first, kept = run(plan(TOY, settings={"policy": "low"}), TOY_PLACE, tmp_path)
    assert kept == 0
    ran: list[int] = []
    whole, kept = run(plan(TOY), TOY_PLACE, tmp_path, on_finished=lambda _cell, finished, _total: ran.append(finished))
    assert kept == len(first.rows) == 12
    assert ran == list(range(13, 25))
    assert whole.rows == run(plan(TOY), TOY_PLACE, tmp_path / "fresh")[0].rows
    assert run(plan(TOY), TOY_PLACE, tmp_path, fresh=True)[1] == 0


def test_cells_that_other_code_finished_count_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(plan(TOY), TOY_PLACE, tmp_path)
    monkeypatch.setattr("tocsin.lab.experiments.cells.code_digest", lambda _experiment: "changed")
    assert run(plan(TOY), TOY_PLACE, tmp_path)[1] == 0
    assert len(code_digest(TOY)) == 64


@pytest.mark.parametrize("torn", [b'{"key": "a", "metr', b'{"key": "a", "metrics": {"x": 1.0}}', b"\x00\x00\x00\n"])
def test_a_line_that_a_crash_tore_is_as_if_it_had_not_been_written(tmp_path: Path, torn: bytes) -> None:
    with Journal(tmp_path) as journal:
        journal.keep("whole", {"x": 0.1})
    with (tmp_path / FILE).open("ab") as file:
        file.write(torn)
    with Journal(tmp_path) as journal:
        assert journal.find("a") is None
        journal.keep("b", {"x": math.nan})
    with Journal(tmp_path) as journal:
        assert journal.find("whole") == {"x": 0.1}
        assert math.isnan((journal.find("b") or {})["x"])


def test_others_look_at_what_is_finished_while_a_run_works(tmp_path: Path) -> None:
    assert look(tmp_path / "absent") == {}
    with Journal(tmp_path) as journal:
        journal.keep("a", {"x": 0.1})
        with (tmp_path / FILE).open("ab") as file:
            file.write(b'{"key": "half')
        before = (tmp_path / FILE).read_bytes()
        assert look(tmp_path) == {"a": {"x": 0.1}}
        assert (tmp_path / FILE).read_bytes() == before


def test_two_runs_do_not_work_in_one_folder(tmp_path: Path) -> None:
    with Journal(tmp_path), pytest.raises(ConflictError, match="another run"):
        Journal(tmp_path)


def test_a_failing_cell_is_named_with_the_way_to_see_it_again_and_the_finished_ones_stay(tmp_path: Path) -> None:
    wanted = plan(replace(TOY, sweeps=TOY.sweeps[:1]), settings={"policy": "bad", "size": "1.0"})
    with pytest.raises(CellError) as failed:
        run(wanted, TOY_PLACE, tmp_path)
    assert "seed 2" in failed.value.message
    assert "the toy broke" in failed.value.message
    assert (
        failed.value.hint == "replay: tocsin lab replay-cell toy --seed 2 --set policy=bad --set size=1.0 --set on=True"
    )
    assert len((tmp_path / FILE).read_bytes().splitlines()) == 1


# ---------------------------------------------------------------- what a run rests on


def test_the_code_that_makes_the_numbers_is_named_with_what_the_model_imports_beside_it() -> None:
    model = Path(inspect.getfile(registry.experiment("edge-caching").model))
    assert {path.name for path in model_files(model)} == {"model.py", "optimum.py"}, "judges change no number"


def test_words_do_not_change_the_digest_of_the_code_and_statements_do() -> None:
    def source(docstring: str = '"""Adds."""', comment: str = "", total: str = "a + b") -> str:
        return (
            f'"""A module."""\nclass Sum:\n    {docstring}\n    limit: int = 7\n    {docstring}\n\n'
            f"    def add(self, a, b):\n        {docstring}\n        return {total}  {comment}\n"
        )

    assert code_text(source()) == code_text(source('"""Returns the sum."""', "# of both", "(a +   b)"))
    assert code_text(source()) != code_text(source(total="a - b"))
    assert "Adds" not in code_text(source())


def test_a_report_names_the_code_that_made_its_numbers_also_when_it_is_written_again_by_other_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_and_report(plan(TOY), TOY_PLACE, tmp_path).folder
    first = (folder / "report.md").read_bytes()
    assert f", code {code_digest(TOY)[:8]}; 3 replications" in first.decode()
    monkeypatch.setattr("tocsin.lab.experiments.cells.code_digest", lambda _: "another" * 5)
    made, results = load_finished_run(TOY, folder)
    write_report(results, made, folder / "report.md", folder / "plots")
    assert (folder / "report.md").read_bytes() == first


def test_workloads_that_other_code_made_are_made_again_and_fresh_forgets_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"policy": "lru", "size_mb": "200", "popularity": "uniform", "choice": "usual", "scale": "0.02"}
    small |= {"span_s": "60", "warm_up_s": "30"}
    wanted = plan(registry.experiment("edge-caching"), settings=small, replications=1)
    cells = [cell for cell in wanted.cells() if cell.sweep == "sizes"]
    monkeypatch.setattr(Plan, "cells", lambda _: iter(cells))

    def kept(*, fresh: bool = False) -> list[Path]:
        run(wanted, registry.reference("edge-caching"), tmp_path, fresh=fresh)
        return sorted(tmp_path.glob("traces/**/*.npz"))

    (first,) = kept()
    first.write_bytes(b"stale")
    assert kept(fresh=True) == [first]
    assert first.read_bytes() != b"stale"
    monkeypatch.setattr("tocsin.lab.experiments.cells.code_digest", lambda _: "another" * 5)
    (other,) = kept()
    assert other.parent != first.parent
    assert not first.exists()


def test_the_command_that_replays_a_cell_can_be_given_as_it_stands() -> None:
    experiment = registry.experiment("edge-caching")
    cell = next(cell for cell in plan(experiment).cells() if cell.sweep == "choices")
    words = shlex.split(replay_hint(experiment, cell))
    given = dict(word.split("=", 1) for word in words if "=" in word)
    assert "" not in given.values()
    again = plan(experiment, settings=given, replications=1)
    assert again.values == cell.values
