"""On what verdicts depend: the law of popularity and what the paper leaves open; no verdict contradicts its table."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.judged_results import Figures, judged, made_up
from tocsin.lab.experiments import registry
from tocsin.lab.experiments.comparisons import judge
from tocsin.lab.experiments.declaration import Claim, Judgement, Value
from tocsin.lab.experiments.edge_caching.dependence import verdict
from tocsin.lab.experiments.edge_caching.judges import judge_held_for_ttl_beside_lsc
from tocsin.lab.experiments.edge_caching.model import CHOICES, LAWS
from tocsin.lab.experiments.edge_caching.points import TOUCHED, Points
from tocsin.lab.experiments.plan import plan
from tocsin.lab.experiments.report import write_report
from tocsin.lab.experiments.results import MissingCellsError, ResultsRow, RunResults


def verdict_on(answers: Mapping[tuple[str, str | None], bool | None]) -> Judgement:
    """Of a claim with these answers: by law, and by choice or at every size."""
    cells = plan(registry.experiment("edge-caching"), quick=True, replications=2).cells()
    asked = [cell for cell in cells if dict(cell.values)["choice"] in ("usual", "put-is-no-access")]

    def holds(points: Points) -> tuple[bool | None, str]:
        return answers[str(points.law), None if points.choice is None else str(points.choice)], ""

    claim = Claim("made-up", "", "", lambda results: verdict(results, holds, ""))
    return judge(claim, RunResults([ResultsRow(cell, {"hit_gb": 1.0}) for cell in asked]))


def by_law(lead: float) -> Figures:
    """LSC is above LRU by this under uniform popularity, and as far below under zipf."""

    def figures(_sweep: str, values: Mapping[str, Value], replication: int) -> dict[str, float]:
        gain = lead if values["popularity"] == "uniform" else -lead
        return {"hit_ratio": 0.5 + replication / 1e6 + (gain if values["policy"] == "lsc" else 0.0)}

    return figures


def ratios(lru: float, lsc: float, **with_choice: float) -> Figures:
    """Hit ratios of LRU and LSC; of LRU with a choice, whose hyphens are underscores, another one."""

    def found(_sweep: str, values: Mapping[str, Value], replication: int) -> dict[str, float]:
        mine = lsc if values["policy"] == "lsc" else with_choice.get(str(values["choice"]).replace("-", "_"), lru)
        return {"hit_ratio": mine + replication / 1e6}

    return found


def test_a_claim_that_holds_only_with_another_choice_depends_on_it() -> None:
    found = judged("edge-caching", "lsc-over-lru", ratios(0.5, 0.4, put_is_no_access=0.3))
    assert found.verdict == "depends"
    assert found.because.startswith(
        "It holds at 150 MB over 1800 s with `put-is-no-access` (uniform), with `put-is-no-access` (zipf); "
        "it does not as usual (uniform), as usual (zipf)."
    )


def test_a_claim_that_another_choice_breaks_depends_on_it() -> None:
    found = judged("edge-caching", "lsc-over-lru", ratios(0.3, 0.4, newcomer_stays=0.5))
    assert found.verdict == "depends"
    assert "it does not at 150 MB over 1800 s with `newcomer-stays` (uniform)" in found.because


def test_a_choice_that_changes_nothing_where_it_was_swept_is_no_reason() -> None:
    """At the size of the choices it holds as usual and with the choice; at another it does not."""

    def figures(sweep: str, values: Mapping[str, Value], replication: int) -> dict[str, float]:
        return ratios(0.3 if values["size_mb"] == 150 else 0.5, 0.4, put_is_no_access=0.2)(sweep, values, replication)

    found = judged("edge-caching", "lsc-over-lru", figures)
    assert found.verdict == "not reproduced"
    assert found.because.endswith(
        "But at 150 MB over 1800 s it holds as usual and with 2 of the choices (uniform), "
        "as usual and with 2 of the choices (zipf)."
    )


def test_a_choice_that_holds_where_it_is_open_as_usual_is_told_and_decides_nothing() -> None:
    answers = dict.fromkeys(itertools.product(LAWS, (None, "usual", "put-is-no-access")), False)
    found = verdict_on({**answers, ("uniform", "usual"): None, ("uniform", "put-is-no-access"): True})
    assert (found.verdict, found.because) == (
        "not reproduced",
        "But at 150 MB over 1800 s it holds with `put-is-no-access` (uniform, where it is open as usual).",
    )


def test_laws_that_differ_where_choices_are_swept_decide_what_is_open_at_every_size() -> None:
    answers = dict.fromkeys(itertools.product(LAWS, (None, "usual", "put-is-no-access")), False)
    here = {**answers, ("uniform", "usual"): True}
    found = verdict_on({**here, ("uniform", None): None})
    assert found.verdict == "depends"
    assert found.because.startswith(
        "It holds at 150 MB over 1800 s as usual (uniform); it does not as usual (zipf) and"
    )
    assert found.because.endswith("Under uniform the error leaves open whether it holds at every size.")
    found = verdict_on(here)
    assert found.verdict == "not reproduced", "under the one law it surely does not at another size"
    assert found.because == "But at 150 MB over 1800 s it holds as usual (uniform)."


def test_no_verdict_contradicts_the_table_of_choices() -> None:
    """Every combination of answers, at every size and where choices are swept: another answer is named."""
    places = list(itertools.product(LAWS, (None, "usual", "put-is-no-access")))
    words = {True: "s it holds ", False: "s it does not hold "}
    seen = set()
    for some in itertools.product((True, False, None), repeat=len(places)):
        answers = dict(zip(places, some, strict=True))
        everywhere = [answers[law, None] for law in LAWS]
        found = verdict_on(answers)
        seen.add(found.verdict)
        if found.verdict == "depends":
            assert {True, False} <= set(some)
            continue
        if found.verdict == "not judged":
            assert None in everywhere
            assert False not in everywhere
            continue
        assert (False in everywhere) == (found.verdict == "not reproduced")
        other = found.verdict == "not reproduced"
        against = [law for (law, choice), answer in answers.items() if choice and answer is other]
        assert (words[other] in found.because) == bool(against), (answers, found)
        assert all(f"({law}" in found.because for law in against), (answers, found)
    assert seen == {"reproduced", "not reproduced", "depends", "not judged"}


def test_a_run_with_another_choice_at_every_size_says_so() -> None:
    found = judged("edge-caching", "lsc-over-lru", by_law(0.1), choice="put-is-no-access")
    assert found.because.startswith("It holds with `put-is-no-access` (uniform); it does not with `put-is-no-access`")


def test_a_table_without_rows_is_left_out(tmp_path: Path) -> None:
    declared = replace(registry.experiment("edge-caching"), plots=())
    for choice, tables in (("put-is-no-access", 0), ("usual", 2)):
        wanted = plan(declared, quick=True, settings={"choice": choice}, replications=2)
        write_report(made_up(wanted, lambda *_: {}), wanted, tmp_path / "report.md", tmp_path / "plots")
        assert (tmp_path / "report.md").read_text("utf-8").count("## Which claim depends on which choice") == tables


def test_where_it_is_open_as_usual_no_choice_gives_another_answer() -> None:
    """At the size of the choices as usual the error is too large; a choice is sure, and so are the larger sizes."""

    def figures(sweep: str, values: Mapping[str, Value], replication: int) -> dict[str, float]:
        if sweep == "choices" and values["policy"] == "lru" and values["choice"] == "usual":
            return {"hit_ratio": 0.4 + (replication - 1) / 10}
        return ratios(0.3, 0.4, put_is_no_access=0.5)(sweep, values, replication)

    found = judged("edge-caching", "lsc-over-lru", figures)
    assert found.verdict == "reproduced"
    assert "it does not hold with `put-is-no-access` (uniform, where it is open as usual)" in found.because
    declared = registry.experiment("edge-caching")
    made = made_up(plan(declared, quick=True, replications=3), figures)
    told = {line[0]: list(line[1:]) for line in declared.tables[0].made(made)[1]}
    assert told["LSC has a higher hit ratio than LRU"][:2] == ["open", "does not"]


def test_the_table_tells_with_which_choice_a_claim_holds() -> None:
    declared = registry.experiment("edge-caching")
    made = made_up(plan(declared, quick=True, replications=3), ratios(0.5, 0.4, put_is_no_access=0.3))
    uniform, zipf = declared.tables
    head, lines = uniform.made(made)
    assert list(head) == ["claim", "usual", "put-is-no-access", "newcomer-stays"]
    told = {line[0]: list(line[1:]) for line in lines}
    assert told["LSC has a higher hit ratio than LRU"] == ["does not", "**holds**", "does not"]
    # Others are touched by a newcomer that stays, too, and the quick run has them not.
    assert told["TTL has the highest hit ratio"][2] == "–"
    with pytest.raises(MissingCellsError):
        zipf.made(RunResults([row for row in made.rows if row.cell.sweep != "choices"]))


def test_every_choice_is_swept_with_the_policies_that_it_can_touch() -> None:
    assert set(TOUCHED) == set(CHOICES)
    declared = registry.experiment("edge-caching")
    for scale in (1.0, 0.1):
        settings = {"scale": str(scale)}
        cells = [dict(c.values) for c in plan(declared, settings=settings).cells() if c.sweep == "choices"]
        assert {(cell["choice"], cell["policy"]) for cell in cells} == {(c, p) for c, ps in TOUCHED.items() for p in ps}
        assert {(cell["scale"], cell["size_mb"], cell["span_s"]) for cell in cells} == {(scale, 200, 2_700.0)}
    quick = list(plan(declared, quick=True).cells())
    sizes = {cell.values for cell in quick if cell.sweep == "sizes"}
    usual = {cell.values for cell in quick if cell.sweep == "choices" and dict(cell.values)["choice"] == "usual"}
    assert usual < sizes, "what a quick run has run already"


def test_holding_times_are_held_against_the_times_to_live_of_the_same_choice() -> None:
    """Another cap makes lives twice as long with every policy; LSC holds for as long as before."""

    def figures(_sweep: str, values: Mapping[str, Value], replication: int) -> dict[str, float]:
        times = 2.0 if values["choice"] == "lives-without-cap" else 1.0
        held = 10.0 * times if values["policy"] == "ttl" else 9.0
        return {"life_s": 10.0 * times, "holding_s": held + replication / 1000}

    made = made_up(plan(registry.experiment("edge-caching"), replications=3), figures)
    good, told = judge_held_for_ttl_beside_lsc(Points(made, "uniform", "lives-without-cap"))
    assert good is True
    assert "lsc 0.5" in told, told
