"""`tocsin lab` as its users start it: a process of its own, killed, without Spark, on several processors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.waiting import WITHIN_S, wait_until
from tocsin.cli.main import main

ROOT = Path(__file__).parents[3]
SMALL = ("--set", "customers=300", "--set", "warm_up=10")

# Whatever is imported on the way, none of these may be: the lab installs without them.
WITHOUT_ENGINE = """
import sys
from importlib.abc import MetaPathFinder
ABSENT = {"pyspark", "py4j", "deltalake", "sqlglot", "aiohttp", "uvloop", "structlog", "pydantic"}
class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from tocsin.cli.main import main
main(sys.argv[1:])
"""


# Where the tests were started in the background, Ctrl-C is ignored, and so it would be in what they start.
HEARS = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"


def lab(*arguments: str, program: str = "from tocsin.cli.main import main; main()") -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    return subprocess.Popen(
        [sys.executable, "-c", HEARS + program, "lab", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


def finished(process: subprocess.Popen[str]) -> tuple[str, str]:
    out, err = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 0, err
    return out, err


def alive_in_group(group: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["status"]):
        try:
            if os.getpgid(process.pid) == group and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process)
        except ProcessLookupError:
            continue
    return found


def outputs(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "cells.jsonl"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_the_lab_works_where_neither_spark_nor_a_server_is_installed(tmp_path: Path) -> None:
    arguments = ("run", "queues", "--quick", *SMALL, "--replications", "1", "--processes", "1", "--out", str(tmp_path))
    out, _ = finished(lab(*arguments, program=WITHOUT_ENGINE))
    assert out.splitlines()[-1] == str(tmp_path / "queues-quick" / "report.md")


def test_what_is_not_installed_is_said_before_anything_is_run(tmp_path: Path) -> None:
    program = WITHOUT_ENGINE.replace('ABSENT = {"pyspark", ', 'ABSENT = {"matplotlib", ')
    process = lab("run", "queues", "--out", str(tmp_path), program=program)
    _, err = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 1
    assert err.splitlines() == ["error: matplotlib is not installed", "hint: pip install 'tocsin[lab]' installs it"]
    assert list(tmp_path.iterdir()) == []


def test_a_killed_run_goes_on_where_it_was_and_ends_with_the_same_bytes(tmp_path: Path) -> None:
    few = ("--set", "customers=4000", "--replications", "5")
    arguments = ("run", "queues", "--quick", *few, "--processes", "2", "--out")
    process = lab(*arguments, str(tmp_path / "killed"))
    journal = tmp_path / "killed" / "queues-quick" / "cells.jsonl"
    wait_until(lambda: journal.exists() and journal.read_bytes().count(b"\n") >= 3, "three runs are kept", 60)
    process.kill()
    process.communicate(timeout=WITHIN_S)  # its workers hold the other ends of these pipes: they have gone, too
    before = journal.read_bytes().count(b"\n")
    assert 3 <= before < 40
    _, err = finished(lab(*arguments, str(tmp_path / "killed")))
    assert f"40 runs, {before} of them finished before" in err
    finished(lab(*arguments, str(tmp_path / "whole")))
    assert outputs(tmp_path / "killed") == outputs(tmp_path / "whole")


def test_an_interrupted_run_leaves_nobody_behind_and_says_nothing_but_that(tmp_path: Path) -> None:
    process = lab("run", "queues", "--processes", "2", "--out", str(tmp_path))
    journal = tmp_path / "queues" / "cells.jsonl"
    wait_until(journal.exists, "it has begun", 60)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert err.endswith("queues: stopped; finished cells are kept, and the same command continues from there\n")
    wait_until(lambda: not alive_in_group(process.pid), "its processes end", 60)


# ---------------------------------------------------------------- in this process


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["lab", *arguments])
    captured = capsys.readouterr()
    assert ended.value.code == code, captured.err
    return captured.out + captured.err


def test_every_command_teaches_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert "tocsin lab run queues --quick" in said(capsys, "--help")
    for command in ("list", "run", "report", "replay-cell", "scenario", "play", "replay-trace"):
        assert "Usage" in said(capsys, command, "--help")
    assert "tocsin lab play city.jsonl --policy nc,lsc --live" in said(capsys, "play", "--help")


def test_list_shows_every_experiment_and_all_about_one(capsys: pytest.CaptureFixture[str]) -> None:
    from tocsin.lab.experiments import registry

    listed = said(capsys, "list")
    for name in registry.EXPERIMENTS:
        assert name in listed
        told = said(capsys, "list", name)
        experiment = registry.experiment(name)
        assert all(
            parameter.about in told for parameter in (*experiment.parameters, *experiment.metrics, *experiment.sweeps)
        )
        assert all(claim.says in told for claim in experiment.claims)


def test_a_report_is_made_again_and_elsewhere_without_running(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    where = ("--quick", "--out", str(tmp_path))
    said(capsys, "run", "queues", *SMALL, "--replications", "2", "--processes", "1", *where)
    report = tmp_path / "queues-quick" / "report.md"
    first = report.read_text("utf-8")
    report.unlink()
    assert "not judged: exponential-service" in said(capsys, "report", "queues", *where)  # so few customers
    assert report.read_text("utf-8") == first
    said(capsys, "report", "queues", *where, "--to", str(tmp_path / "docs"))
    assert (tmp_path / "docs" / "queues.md").read_text("utf-8") == first.replace("(plots/", "(queues/")
    assert (tmp_path / "docs" / "queues" / "ratio.svg").exists()


def test_a_replay_is_the_run_that_was_kept(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    where = ("--quick", "--out", str(tmp_path))
    said(capsys, "run", "queues", *SMALL, "--replications", "2", "--processes", "1", *where)
    point = ("--seed", "2", *SMALL, "--set", "load=0.8", "--set", "service=constant")
    trace = tmp_path / "trace.jsonl"
    assert "the same as the finished run" in said(
        capsys, "replay-cell", "queues", *point, *where, "--trace", str(trace)
    )
    lines = trace.read_text("utf-8").splitlines()
    assert len(lines) == 1 + 310
    printed = said(capsys, "replay-cell", "queues", *point, *where, "--trace", "-")
    assert printed.splitlines()[: len(lines)] == lines
    assert "ratio" in said(capsys, "replay-cell", "queues", "--seed", "99", *SMALL, *where)


def test_a_scenario_is_written_as_its_settings_say(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from tocsin.lab.scenarios.scenario import load

    small = ("--set", "subscribers=5", "--set", "subscriptions=20", "--set", "span_s=300", "--set", "movement=roads")
    one, other = (tmp_path / name for name in ("one.jsonl", "other.jsonl"))
    assert "steps in" in said(capsys, "scenario", str(one), *small, "--seed", "7")
    said(capsys, "scenario", str(other), *small, "--seed", "7")
    assert one.read_bytes() == other.read_bytes()
    about = load(one).about
    assert (about["seed"], about["settings"]["subscribers"], about["settings"]["movement"]) == (7, 5, "roads")


def test_a_scenario_file_is_played_to_every_policy_and_leaves_a_trace(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file, trace = tmp_path / "city.jsonl", tmp_path / "t.jsonl"
    small = ("subscribers=20", "subscriptions=150", "span_s=600", "join_s=60", "publish_every_s=4", "zone_every_s=30")
    said(capsys, "scenario", str(file), *(word for case in small for word in ("--set", case)))
    told = said(capsys, "play", str(file), "--policy", "nc,lsc,ttl", "--size-kb", "5,20").splitlines()
    heads = told[0].split()
    rows = {tuple(line.split()[1:3]): dict(zip(heads[2:], line.split()[3:], strict=True)) for line in told[1:6]}
    assert [*rows] == [("nc", "0"), ("lsc", "5"), ("lsc", "20"), ("ttl", "5"), ("ttl", "20")]
    assert len({row["results"] for row in rows.values()}) == 1  # of the same file
    assert rows["nc", "0"]["hit_ratio"] == "0"
    assert 0 < float(rows["lsc", "5"]["hit_ratio"]) < float(rows["lsc", "20"]["hit_ratio"])
    narrow = ("--policy", "lsc", "--size-kb", "5", "--cluster-kb-per-s", "2")
    slow = said(capsys, "play", str(file), *narrow, "--trace", str(trace)).splitlines()[1].split()
    assert float(slow[heads.index("latency_s") + 1]) > 2 * float(rows["lsc", "5"]["latency_s"])
    first = trace.read_bytes()
    said(capsys, "play", str(file), *narrow, "--trace", str(trace))
    assert trace.read_bytes() == first
    assert first.count(b'"what":"Got"') > 10


def test_the_scenario_that_the_docs_show_can_be_played(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = (ROOT / "docs" / "lab.md").read_text("utf-8")
    file = tmp_path / "docs.jsonl"
    file.write_text(text.split("```text\n")[1].split("```")[0])
    assert "simulated  lsc" in said(capsys, "play", str(file))


def test_scenarios_come_from_maps_and_from_traces_of_the_one_simulator(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from tocsin.lab.scenarios.scenario import load

    file, roads, walks, links = (tmp_path / name for name in ("s.jsonl", "town.wkt", "walks.txt", "links.txt"))
    roads.write_text("LINESTRING (0 0, 400 0, 400 300)\n")
    said(capsys, "scenario", str(file), "--map", str(roads), "--set", "subscribers=5", "--set", "subscriptions=20")
    about = load(file).about
    assert (about["map"], about["settings"]["movement"], about["settings"]["area_m"]) == (
        "town.wkt",
        "roads",
        [400, 300],
    )
    walks.write_text("0 600 0 500 0 500\n0 7 0 0\n0 8 100 100\n600 7 500 0\n")
    links.write_text("10 CONN 7 A up\n200 CONN 7 A down\n300 CONN 8 A up\n")
    files = ("--movement", str(walks), "--connections", str(links), "--access-points", "A")
    said(capsys, "scenario", str(file), *files)
    assert "simulated  lsc" in said(capsys, "play", str(file))


def test_the_help_of_scenarios_names_all_their_settings(capsys: pytest.CaptureFixture[str]) -> None:
    from tocsin.lab.scenarios.city import city
    from tocsin.wire.errors import InputError

    with pytest.raises(InputError) as refused:
        city({"colour": "red"})
    assert refused.value.hint is not None
    told = said(capsys, "scenario", "--help")
    assert [name for name in refused.value.hint.removeprefix("it has: ").split(", ") if name not in told] == []


def test_a_replay_that_differs_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    where = ("--quick", "--out", str(tmp_path))
    said(capsys, "run", "queues", *SMALL, "--replications", "1", "--processes", "1", *where)
    journal = tmp_path / "queues-quick" / "cells.jsonl"
    journal.write_text(journal.read_text().replace('"ratio": ', '"ratio": 1'))
    point = ("--seed", "1", *SMALL, "--set", "load=0.3")
    assert "NOT the same" in said(capsys, "replay-cell", "queues", *point, *where, code=1)


def test_a_file_where_a_folder_is_wanted_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("here")
    run = ("run", "queues", "--quick", *SMALL, "--replications", "1", "--processes", "1")
    wanted = "Not a directory\nhint: --out and --to name folders"
    assert f"{file}/queues-quick: {wanted}" in said(capsys, *run, "--out", str(file), code=1)
    said(capsys, *run, "--out", str(tmp_path))
    again = ("report", "queues", "--quick", "--out", str(tmp_path))
    assert f"{file}/queues: {wanted}" in said(capsys, *again, "--to", str(file), code=1)
    table = tmp_path / "queues-quick" / "results.parquet"
    for torn in (b"", b"PAR1 or so", table.read_bytes()[:-100]):
        table.write_bytes(torn)
        assert "results.parquet: cannot be read" in said(capsys, *again, code=1)


@pytest.mark.parametrize(("live", "extras"), [([], "lab"), (["--live"], "lab,cluster")])
def test_what_a_live_run_lacks_is_in_two_extras(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, live: list[str], extras: str
) -> None:
    def app(*_: object, **__: object) -> None:
        raise ModuleNotFoundError(name="aiohttp")

    monkeypatch.setattr("tocsin.cli.main.app", app)
    with pytest.raises(SystemExit):
        main(["lab", "run", "edge-caching-prototype", *live])
    assert f"pip install 'tocsin[{extras}]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "nothing"), "no experiment nothing"),
        (("run", "queues", "--set", "load"), "must be parameter=value"),
        (("run", "queues", "--set", "colour=red"), "no parameter colour"),
        (("run", "queues", "--set", "load=0.5", "--set", "load=0.6"), "--set load: given twice"),
        (("run", "queues", "--processes", "0"), "--processes: must be 1 or more"),
        (("report", "queues", "--out", "nowhere"), "no finished results"),
        (("replay-cell", "queues", "--seed", "1", "--set", "load=0.1,0.2"), "one value"),
        (("replay-cell", "edge-caching", "--seed", "1", "--set", "budget_of=foo"), "budget_of: no 'foo'"),
        (("replay-cell", "edge-caching", "--seed", "1", "--set", "choice=foo"), "there are: usual, put-is-no-access"),
        (("run", "edge-caching", "--set", "policy=lru,foo"), "policy: no 'foo'"),
        (("run", "edge-caching", "--set", "scale=0"), "scale: must be from 0.02 to 10, got 0"),
        (("run", "edge-caching", "--set", "span_s=nan"), "span_s: must be from 1"),
        (("run", "edge-caching", "--set", "warm_up_s=1400"), "sweep choices: warm_up_s: must be at most half of"),
        (
            ("replay-cell", "edge-caching", "--seed", "1", "--quick", "--set", "span_s=60"),
            "warm_up_s: must be at most half",
        ),
        (("replay-cell", "kafka-admission", "--seed", "1", "--set", "records=0"), "records: must be at least 1, got 0"),
        (("replay-cell", "queues", "--seed", "1", "--trace", "no/such/folder/t"), "No such file"),
        (("scenario", "no/such/folder/t"), "No such file"),
        (("scenario", "t", "--set", "colour=red"), "no setting colour"),
        (("scenario", "t", "--seed", "-1"), "seed: must not be negative"),
        (("scenario", "t", "--set", "churn=much"), "churn: must be a number"),
        (("scenario", "t", "--set", "churn=2"), "churn: must be from 0 to 1"),
        (("scenario", "t", "--set", "zipf_exponent=nan"), "zipf_exponent: must be from 0 to 10, got nan"),
        (("scenario", "t", "--set", "zipf_exponent=-3"), "zipf_exponent: must be from 0 to 10, got -3"),
        (("scenario", "t", "--set", "zipf_exponent=400"), "zipf_exponent: must be from 0 to 10, got 400"),
        (("scenario", "t", "--set", "movement=flight"), "movement: must be one of"),
        (("scenario", "t", "--set", "subscribers=0"), "subscribers: must be > 0"),
        (("scenario", "t", "--set", "subscriptions=99999"), "subscriptions: must be from 0 to"),
        (("scenario", "t", "--set", "join_s=9999"), "join_s: must be from 0 to 3600"),
        (("scenario", "t", "--map", "no.wkt"), "no.wkt: No such file"),
        (("scenario", "t", "--map", "no.wkt", "--movement", "no.txt"), "give one of them"),
        (("scenario", "t", "--map", "no.wkt", "--set", "movement=waypoint"), "along the roads of the map"),
        (("scenario", "t", "--connections", "no.txt"), "--connections FILE --access-points HOST"),
        (("play", "no.jsonl"), "no.jsonl: No such file"),
        (("play", "no.jsonl", "--policy", "lsc,mru"), "there are: nc, ttl, lru"),
        (("play", "no.jsonl", "--size-kb", "0"), "size_kb: must be > 0"),
        (("play", "no.jsonl", "--trace", "-"), "give one --policy"),
        (("play", "no.jsonl", "--speed", "0"), "speed: must be > 0, got 0"),
        (("play", "no.jsonl", "--cluster-kb-per-s", "0"), "bandwidths more than 0"),
    ],
)
def test_a_wrong_command_says_what_is_wrong(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert message in said(capsys, *arguments, code=1)
