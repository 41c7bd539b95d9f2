"""What a run of an experiment writes: tables, plots and the report, and how they are read back."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.toy_experiment import TOY, TOY_PLACE, toy_results
from tocsin.lab.experiments.cells import run
from tocsin.lab.experiments.declaration import ReportTable, Sweep, along
from tocsin.lab.experiments.plan import plan
from tocsin.lab.experiments.plots import bar_style, line_style, plot_lines
from tocsin.lab.experiments.report import markdown_table, write_report
from tocsin.lab.experiments.results import MissingCellsError, ResultsRow, RunResults, read, write
from tocsin.lab.experiments.run_experiment import folder_of, load_finished_run, run_and_report
from tocsin.wire.errors import InputError, NotFoundError


def test_results_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    results = toy_results(tmp_path)
    write(results, TOY, tmp_path)
    assert read(tmp_path, TOY).rows == results.rows
    with (tmp_path / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(results.rows)
    assert rows[0] == {
        "sweep": "sizes",
        "policy": "low",
        "size": "1.0",
        "on": "True",
        "replication": "0",
        "seed": "1",
        "score": "2.0",
    }


def test_asking_for_cells_that_were_not_run_says_which(tmp_path: Path) -> None:
    with pytest.raises(MissingCellsError, match="size = 99"):
        toy_results(tmp_path).mean("score", "sizes", size=99.0)


def test_the_report_has_verdicts_plots_tables_and_how_to_make_it_again(tmp_path: Path) -> None:
    done = run_and_report(plan(TOY, seed=4, settings={"on": "false"}), TOY_PLACE, tmp_path)
    text = (done.folder / "report.md").read_text("utf-8")
    assert "tocsin lab run toy --seed 4 --replications 3 --set on=false" in text
    assert r"| High scores \| more | p. 1 | **reproduced** | 10 |" in text
    assert "| low | 1.0 | 2 ± 2.5 |" in text
    for plot in ("score", "bars"):
        assert f"](plots/{plot}.svg)" in text
        assert (done.folder / "plots" / f"{plot}.png").read_bytes().startswith(b"\x89PNG")
    assert done.verdicts["high-wins"].verdict == "reproduced"


def test_a_wide_table_is_split_by_its_columns_and_each_part_repeats_the_keys() -> None:
    head = ["policy", "size", *(f"metric {number} of a long name" for number in range(6))]
    lines = markdown_table(head, [["lru", "10", *map(str, range(6))]], 2)
    assert max(map(len, lines)) <= 120
    assert [line for line in lines if line.startswith("| lru")] == [
        "| lru | 10 | 0 | 1 | 2 |",
        "| lru | 10 | 3 | 4 | 5 |",
    ]


def test_a_table_with_a_long_cell_becomes_a_list_without_empty_cells() -> None:
    rows = [["a claim", "Fig. 1", "", "because " * 20 + "of it"]]
    lines = "\n".join(markdown_table(["claim", "where", "verdict", "reason"], rows))
    assert lines.startswith("- a claim\n  - where: Fig. 1\n  - reason: because because")
    assert max(map(len, lines.splitlines())) <= 120
    assert " ".join(lines.split()).endswith("because of it")


def test_a_report_tells_with_which_values_each_sweep_was_run(tmp_path: Path) -> None:
    varied = Sweep("ons", "On and off.", (along("on", (False, True)),), fixed={"policy": "high"})
    toy = replace(TOY, sweeps=(*TOY.sweeps, varied))
    wanted = plan(toy, settings={"size": "3,4,5"}, replications=2)
    results, _ = run(wanted, TOY_PLACE, tmp_path)
    assert {dict(row.cell.values)["size"] for row in results.rows if row.cell.sweep == "ons"} == {3.0}
    write_report(results, wanted, tmp_path / "report.md", tmp_path / "plots")
    text = (tmp_path / "report.md").read_text("utf-8")
    assert "### sizes\n\nBy size.\n\n| policy |" in text
    assert "### pairs\n\nPairs.\n\nAll points with `on` = False.\n\n| policy |" in text
    assert "### ons\n\nOn and off.\n\nAll points with `size` = 3.0, `policy` = high.\n\n| on |" in text
    assert "| `size` | 3, 4, 5 | a number |" in text


def test_a_report_has_the_tables_of_its_experiment_as_far_as_there_are_cells(tmp_path: Path) -> None:
    def made(results: RunResults) -> tuple[list[str], list[list[str]]]:
        return ["size", "score"], [["5", str(results.mean("score", "pairs", size=5.0))]]

    toy = replace(TOY, tables=(ReportTable("Pairs apart", "All of them.", made),))
    results = toy_results(tmp_path)
    write_report(results, plan(toy), tmp_path / "report.md", tmp_path / "plots")
    assert "## Pairs apart\n\nAll of them.\n\n| size | score |" in (tmp_path / "report.md").read_text("utf-8")
    none = RunResults([row for row in results.rows if row.cell.sweep == "sizes"])
    write_report(none, plan(toy), tmp_path / "report.md", tmp_path / "plots")
    assert "Pairs apart" not in (tmp_path / "report.md").read_text("utf-8")


def test_a_finished_run_is_known_again_and_an_unfinished_one_is_not(tmp_path: Path) -> None:
    made = plan(TOY, seed=4, settings={"on": "false"})
    run_and_report(made, TOY_PLACE, tmp_path)
    folder = folder_of(tmp_path, "toy", quick=False)
    again, results = load_finished_run(TOY, folder)
    assert list(again.cells()) == [row.cell for row in results.rows] == list(made.cells())
    with pytest.raises(NotFoundError, match="no finished results"):
        load_finished_run(TOY, tmp_path / "elsewhere")
    (folder / "run.json").write_text("{}")
    with pytest.raises(InputError, match=r"run\.json"):
        load_finished_run(TOY, folder)
    (folder / "run.json").unlink()
    with pytest.raises(NotFoundError, match="did not finish"):
        load_finished_run(TOY, folder)


def test_what_is_not_a_number_is_left_out_of_tables_and_plots(tmp_path: Path) -> None:
    cells = list(plan(TOY).cells())
    rows = [ResultsRow(c, {"score": math.nan if dict(c.values)["policy"] == "high" else 1.0}) for c in cells]
    results = RunResults(rows)
    with pytest.raises(MissingCellsError):
        results.mean("score", "sizes", policy="high", size=1.0)
    write_report(results, plan(TOY), tmp_path / "report.md", tmp_path / "plots")
    said = (tmp_path / "report.md").read_text("utf-8")
    assert "| high | 1.0 | – |" in said
    assert "nan" not in said
    write(results, TOY, tmp_path)
    assert "nan" not in (tmp_path / "results.csv").read_text("utf-8")
    assert all(
        math.isnan(row.metrics["score"]) == math.isnan(mine.metrics["score"])
        for row, mine in zip(read(tmp_path, TOY).rows, rows, strict=True)
    )


def test_no_two_lines_of_a_plot_look_alike() -> None:
    assert len({tuple(line_style(number).values()) for number in range(40)}) == 40
    assert len({tuple(bar_style(number).values()) for number in range(40)}) == 40


def test_a_plot_has_the_further_lines_that_it_names(tmp_path: Path) -> None:
    also = replace(TOY.plots[0], also=(("score", {"policy": "high"}),))
    assert list(plot_lines(also, toy_results(tmp_path))) == ["low", "high", "score (high)"]
    with pytest.raises(ValueError, match="shows"):
        replace(TOY, plots=(replace(also, also=(("weight", {"policy": "high"}),)),))
