"""`tocsin lab`: runs and reports experiments. It needs the extra `lab`, and no Spark.

Finished cells are saved at once, because a full experiment can take hours and may be interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from tocsin.cli.commands import lab_scenarios
from tocsin.cli.options import OUT, LabSettings, Out, TraceTo, folder_errors, open_output, reporter, settings_of
from tocsin.cli.output import print_table, progress_bar
from tocsin.wire.errors import InputError

app = App(
    name="lab",
    help_format="plaintext",
    help_epilogue="""An experiment is a declared set of runs: parameters, what is varied, how often
each point is repeated, what is measured, and the claims of a paper that the
results are compared with. A run with the same seed gives the same bytes, on any
number of processes. An interrupted run continues where it stopped.

Examples:

    tocsin lab list                                  all experiments
    tocsin lab list queues                           its parameters and claims
    tocsin lab run queues --quick                    a minute at most
    tocsin lab run queues --set load=0.2,0.9         other points
    tocsin lab run edge-caching-prototype --live     on the live system, with Spark
    tocsin lab report queues --quick                 the verdicts again
    tocsin lab replay-cell queues --seed 3           one run, event by event
    tocsin lab scenario city.jsonl --seed 7          an hour of a city
    tocsin lab play city.jsonl --policy nc,lsc       that hour, played
    tocsin lab replay-trace events.jsonl             a live broker's events, replayed by its core
""",
)
app.command(lab_scenarios.scenario, help_epilogue=lab_scenarios.SCENARIO_EXAMPLES)
app.command(lab_scenarios.play, help_epilogue=lab_scenarios.PLAY_EXAMPLES)

_ExperimentName = Annotated[str, Parameter(help='The name of the experiment, as "tocsin lab list" shows it.')]
_Quick = Annotated[bool, Parameter(negative="", help="Run smaller cells and fewer repetitions, within a minute.")]
_Live = Annotated[
    bool, Parameter(negative="", help="Use the live system instead of simulation; needs the extra cluster.")
]


@app.command(name="list")
def list_experiments(
    name: Annotated[str | None, Parameter(help="The experiment to describe (default: list all).")] = None, /
) -> None:
    """List the experiments, or describe one: its parameters, sweeps, metrics and claims."""
    from tocsin.lab.experiments import registry

    if name is not None:
        _describe(registry.experiment(name))
        return
    rows = [(listed, registry.experiment(listed).title) for listed in registry.EXPERIMENTS]
    print_table(("EXPERIMENT", "TITLE"), rows, sys.stdout)


@app.command
def run(
    name: _ExperimentName,
    /,
    *,
    quick: _Quick = False,
    set_: LabSettings = None,
    seed: Annotated[int, Parameter(help="The seed of the first repetition; each further one adds 1.")] = 1,
    replications: Annotated[
        int | None, Parameter(help="The number of repetitions of each point (default: the experiment's own).")
    ] = None,
    processes: Annotated[
        int | None, Parameter(help="The number of parallel processes (default: one per processor).")
    ] = None,
    fresh: Annotated[
        bool, Parameter(negative="", help="Run all cells again, even those that earlier runs finished.")
    ] = False,
    live: _Live = False,
    out: Out = OUT,
) -> int:
    """Run an experiment, or continue one that was interrupted, and write its tables, plots and report into a folder.

    Finished cells are kept and reused until the code that computed them changes. With --live the experiment runs on a
    cluster with Spark and on brokers of its own, and is compared with the simulation of the same scenario; the exit
    status is 1 if they do not agree.
    """
    from tocsin.lab.experiments import registry, run_experiment
    from tocsin.lab.experiments.plan import plan

    experiment = registry.experiment(name)
    if live:
        for flag, value in (("--replications", replications), ("--processes", processes)):
            if value is not None:
                raise InputError(f"{flag} cannot be given with --live: a live run happens once")
        live_run = registry.live(name)
        with folder_errors():
            outcome = live_run.run(settings_of(set_), out, quick=quick, seed=seed, fresh=fresh, say=reporter(name))
        return _print_live_outcome(outcome)
    planned = plan(experiment, quick=quick, seed=seed, replications=replications, settings=settings_of(set_))
    if processes is not None and processes < 1:
        raise InputError(f"--processes: must be 1 or more, got {processes}")
    with _explain_interrupt(name, fresh=fresh), folder_errors(), _progress(name) as on_finished:
        done = run_experiment.run_and_report(
            planned,
            registry.reference(name),
            out,
            processes=processes or os.cpu_count() or 1,
            fresh=fresh,
            on_finished=on_finished,
        )
    before = f", {done.finished_before} of them finished before" if done.finished_before else ""
    sys.stderr.write(f"{name}: {done.cells} runs{before}\n")
    _print_verdicts(done.verdicts)
    sys.stdout.write(f"{done.folder / 'report.md'}\n")
    return 0


@app.command
def report(
    name: _ExperimentName,
    /,
    *,
    quick: _Quick = False,
    live: _Live = False,
    out: Out = OUT,
    to: Annotated[
        Path | None, Parameter(help="The folder for NAME.md and its plots, instead of the run's own.")
    ] = None,
) -> int:
    """Judge a finished run again and write its report, without running anything."""
    from tocsin.lab.experiments import registry, run_experiment
    from tocsin.lab.experiments.report import write_report

    experiment = registry.experiment(name)
    if live:
        with folder_errors():
            outcome = registry.live(name).report(out, quick=quick, to=to)
        return _print_live_outcome(outcome)
    folder = run_experiment.folder_of(out, name, quick=quick)
    made, results = run_experiment.load_finished_run(experiment, folder)
    path, plots = (folder / "report.md", folder / "plots") if to is None else (to / f"{name}.md", to / name)
    with folder_errors():
        verdicts = write_report(results, made, path, plots)
    _print_verdicts(verdicts)
    sys.stdout.write(f"{path}\n")
    return 0


@app.command
def replay_cell(
    name: _ExperimentName,
    /,
    *,
    seed: Annotated[int, Parameter(help="The seed of the run, as results and errors name it.")],
    set_: LabSettings = None,
    quick: _Quick = False,
    trace: TraceTo = None,
    out: Out = OUT,
) -> int:
    """Run one point with one seed again, and print its metrics; --trace also writes its events.

    If an earlier run finished the same point, says whether the metrics are the same; the exit status is 1 if not.
    """
    from tocsin.lab.engine.engine import TraceFile
    from tocsin.lab.experiments import registry, run_experiment
    from tocsin.lab.experiments.plan import plan

    experiment = registry.experiment(name)
    chosen = settings_of(set_)
    if several := [parameter for parameter, value in chosen.items() if "," in value]:
        raise InputError(f"--set {several[0]}: a replay is one run, so one value")
    planned = plan(experiment, quick=quick, seed=seed, replications=1, settings=chosen)
    if trace is None:
        metrics = run_experiment.replay(planned)
    else:
        with open_output(trace) as file:
            noted = TraceFile(file, seed=seed, about={"experiment": name, "set": dict(planned.values)})
            metrics = run_experiment.replay(planned, trace=noted)
    say = sys.stdout if trace is None or str(trace) != "-" else sys.stderr
    for metric in experiment.metrics:
        say.write(f"{metric.name} {metrics[metric.name]!r}{f' {metric.unit}' if metric.unit else ''}\n")
    before = run_experiment.find_finished_run(planned, run_experiment.folder_of(out, name, quick=quick))
    if before is None:
        return 0
    # Compare as text, because NaN equals NaN there.
    same = all(repr(before.get(metric)) == repr(float(value)) for metric, value in metrics.items())
    sys.stderr.write(f"{'the same as' if same else 'NOT the same as'} the finished run\n")
    return 0 if same else 1


@app.command
def replay_trace(file: Annotated[Path, Parameter(help='The file that "tocsin broker --trace" wrote.')], /) -> int:
    """Replay a live broker's events through its core, under virtual time, and compare the caches' counters.

    The exit status is 1 if hits, misses, evictions or bytes are not those of the live broker, or if the trace has none.
    """
    from tocsin.lab.simulators import trace_replay

    done = trace_replay.replay_trace(file)
    figures = done.figures
    sys.stdout.write(
        f"{done.events:,} events, {done.policy}: {figures.hits:,} hits, {figures.misses:,} misses, "
        f"{figures.evicted:,} evicted, {figures.expired:,} expired; compared {done.compared} times\n"
    )
    for difference in done.differences:
        sys.stderr.write(f"{difference}\n")
    if not done.compared:
        sys.stderr.write("nothing was compared: a broker writes its counters each minute and when it stops\n")
    else:
        sys.stderr.write("the same as the live broker\n" if done.same else "NOT the same as the live broker\n")
    return 0 if done.same else 1


def _describe(experiment: Any) -> None:
    lines = [
        f"{experiment.name}: {experiment.title}",
        "",
        experiment.about,
        f"Source: {experiment.source}.",
        "",
        "Parameters",
    ]
    lines += [f"  {parameter.name} = {parameter.default}: {parameter.about}" for parameter in experiment.parameters]
    lines += ["", "Sweeps"]
    for sweep in experiment.sweeps:
        lines.append(f"  {sweep.name}: {sweep.about}")
        lines += [f"    {', '.join(axis.names)}: {', '.join(map(_point, axis.points))}" for axis in sweep.axes]
    lines += ["", "Metrics"]
    lines += [f"  {metric.title}: {metric.about}" for metric in experiment.metrics]
    lines += ["", "Claims", *(f"  {claim.name}: {claim.says} ({claim.where})" for claim in experiment.claims)]
    sys.stdout.write("\n".join(lines) + "\n")


def _point(point: tuple[Any, ...]) -> str:
    return str(point[0]) if len(point) == 1 else f"({', '.join(map(str, point))})"


def _print_verdicts(verdicts: Mapping[str, Any]) -> None:
    for name, judged in verdicts.items():
        why = f" ({judged.because})" if judged.because else ""
        sys.stdout.write(f"{judged.verdict}: {name}: {judged.figures}{why}\n")


def _print_live_outcome(outcome: Any) -> int:
    sys.stdout.write(f"live and simulation: {outcome.verdict} ({outcome.agreed} of {outcome.compared} figures)\n")
    sys.stdout.write(f"replayed traces: {'the same' if outcome.replayed else 'NOT the same'}\n{outcome.report}\n")
    return 0 if outcome.good else 1


@contextmanager
def _explain_interrupt(name: str, *, fresh: bool) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        command = "the same command without --fresh" if fresh else "the same command"
        sys.stderr.write(f"{name}: stopped; finished cells are kept, and {command} continues from there\n")
        raise


@contextmanager
def _progress(name: str) -> Iterator[Callable[[object, int, int], None]]:
    """Shows a bar on a terminal; in a log, writes a line for every tenth of the cells."""
    if not sys.stderr.isatty():
        tenths = 0
        say = reporter(name)

        def report(_cell: object, finished: int, total: int) -> None:
            nonlocal tenths
            if finished * 10 // total > tenths or finished == total:
                tenths = finished * 10 // total
                say(f"{finished} of {total}")

        yield report
        return
    from rich.progress import MofNCompleteColumn, TimeRemainingColumn

    with progress_bar(name, MofNCompleteColumn, TimeRemainingColumn) as update:
        yield lambda _cell, finished, total: update(completed=finished, total=total)
