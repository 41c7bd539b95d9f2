"""`tocsin lab`: experiments, run and reported. Needs the extra `lab` and no Spark."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from tocsin.cli.commands import lab_scenarios
from tocsin.cli.lab_options import OUT, Out, Settings, TraceTo, folders, open_output, say_as, settings_of
from tocsin.wire.errors import InputError

app = App(
    name="lab",
    help_format="plaintext",
    help_epilogue="""An experiment is a declared set of runs: parameters, what is varied, how often
each point is repeated, what is measured, and the claims of a paper that the
results are held against. A run with the same seed gives the same bytes, on any
number of processes; interrupted, it goes on where it was.

Examples:

    tocsin lab list                                  what there is
    tocsin lab list queues                           its parameters and claims
    tocsin lab run queues --quick                    a minute at most
    tocsin lab run queues --set load=0.2,0.9         other points
    tocsin lab run edge-caching-prototype --live     on the live system, with Spark
    tocsin lab report queues --quick                 the verdicts again
    tocsin lab replay queues --seed 3 --trace t.jsonl    one run, event by event
    tocsin lab scenario city.jsonl --seed 7          an hour of a city
    tocsin lab play city.jsonl --policy nc,lsc       that hour, played
    tocsin lab relive events.jsonl                   a live broker's trace, lived through again
""",
)
app.command(lab_scenarios.scenario, help_epilogue=lab_scenarios.SCENARIO_EXAMPLES)
app.command(lab_scenarios.play, help_epilogue=lab_scenarios.PLAY_EXAMPLES)

OnFinished = Callable[[object, int, int], None]

Name = Annotated[str, Parameter(help='As "tocsin lab list" shows it.')]
Quick = Annotated[bool, Parameter(negative="", help="Smaller and with fewer repetitions: a minute at most.")]
Live = Annotated[bool, Parameter(negative="", help="On the live system, which needs the extra cluster too.")]


@app.command(name="list")
def list_experiments(name: Annotated[str | None, Parameter(help="Tell all about this one.")] = None, /) -> None:
    """List the experiments, or tell all about one: parameters, sweeps, metrics and claims."""
    from tocsin.lab.experiments import registry

    if name is not None:
        _tell(name)
        return
    width = max(map(len, registry.EXPERIMENTS))
    for each in registry.EXPERIMENTS:
        sys.stdout.write(f"{each.ljust(width)}  {registry.experiment(each).title}\n")


@app.command
def run(
    name: Name,
    /,
    *,
    quick: Quick = False,
    set_: Settings = None,
    seed: Annotated[int, Parameter(help="The seed of the first repetition; the others count on from it.")] = 1,
    replications: Annotated[
        int | None, Parameter(help="Repetitions of each point; the experiment has a default.")
    ] = None,
    processes: Annotated[int | None, Parameter(help="How many at once; by default one per processor.")] = None,
    fresh: Annotated[bool, Parameter(negative="", help="Forget what earlier runs finished.")] = False,
    live: Live = False,
    out: Out = OUT,
) -> int:
    """Run an experiment, or go on with one that was interrupted. Tables, plots and the report go into a folder.

    Finished runs are kept; they count for as long as the code that made them stays as it is. With --live it is played
    on a cluster with Spark and on brokers of its own, and held against the simulation of the same scenario; exits with
    1 where they do not agree.
    """
    from tocsin.lab.experiments import registry, run_experiment
    from tocsin.lab.experiments.plan import plan

    experiment = registry.experiment(name)
    if live:
        for flag, value in (("--replications", replications), ("--processes", processes)):
            if value is not None:
                raise InputError(f"{flag} cannot be given with --live: an hour is lived through once")
        half = registry.live(name)
        with folders():
            lived = half.conduct(settings_of(set_), out, quick=quick, seed=seed, fresh=fresh, say=say_as(name))
        return _say_lived(lived)
    wanted = plan(experiment, quick=quick, seed=seed, replications=replications, settings=settings_of(set_))
    if processes is not None and processes < 1:
        raise InputError(f"--processes: must be 1 or more, got {processes}")
    with _goes_on(name, fresh=fresh), folders(), _progress(name) as on_finished:
        done = run_experiment.conduct(
            wanted,
            registry.reference(name),
            out,
            processes=processes or os.cpu_count() or 1,
            fresh=fresh,
            on_finished=on_finished,
        )
    before = f", {done.kept} of them finished before" if done.kept else ""
    sys.stderr.write(f"{name}: {done.cells} runs{before}\n")
    _say_verdicts(done.verdicts)
    sys.stdout.write(f"{done.folder / 'report.md'}\n")
    return 0


@app.command
def report(
    name: Name,
    /,
    *,
    quick: Quick = False,
    live: Live = False,
    out: Out = OUT,
    to: Annotated[Path | None, Parameter(help="Write NAME.md and its plots into this folder instead.")] = None,
) -> int:
    """Judge and report a finished run again, without running anything."""
    from tocsin.lab.experiments import registry, run_experiment
    from tocsin.lab.experiments.report import write_report

    experiment = registry.experiment(name)
    if live:
        with folders():
            lived = registry.live(name).report(out, quick=quick, to=to)
        return _say_lived(lived)
    folder = run_experiment.folder_of(out, name, quick=quick)
    made, results = run_experiment.load_finished_run(experiment, folder)
    path, plots = (folder / "report.md", folder / "plots") if to is None else (to / f"{name}.md", to / name)
    with folders():
        write_report(results, made, path, plots)
    _say_verdicts(run_experiment.verdicts(experiment, results))
    sys.stdout.write(f"{path}\n")
    return 0


@app.command
def replay(
    name: Name,
    /,
    *,
    seed: Annotated[int, Parameter(help="The run's seed, as results and errors name it.")],
    set_: Settings = None,
    quick: Quick = False,
    trace: TraceTo = None,
    out: Out = OUT,
) -> int:
    """Run one point with one seed again: its numbers, and with --trace its events.

    Where an earlier run kept the same point, says whether the numbers are the same, and exits with 1 when they are not.
    """
    from tocsin.lab.engine.trace import TraceFile
    from tocsin.lab.experiments import registry, run_experiment
    from tocsin.lab.experiments.plan import plan

    experiment = registry.experiment(name)
    given = settings_of(set_)
    if several := [one for one, value in given.items() if "," in value]:
        raise InputError(f"--set {several[0]}: a replay is one run, so one value")
    wanted = plan(experiment, quick=quick, seed=seed, replications=1, settings=given)
    if trace is None:
        metrics = run_experiment.replay(wanted)
    else:
        with open_output(trace) as file:
            noted = TraceFile(file, seed=seed, about={"experiment": name, "set": dict(wanted.values)})
            metrics = run_experiment.replay(wanted, trace=noted)
    say = sys.stdout if trace is None or str(trace) != "-" else sys.stderr
    for metric in experiment.metrics:
        say.write(f"{metric.name} {metrics[metric.name]!r}{f' {metric.unit}' if metric.unit else ''}\n")
    before = run_experiment.find_finished_run(wanted, run_experiment.folder_of(out, name, quick=quick))
    if before is None:
        return 0
    # As text: what is not a number on either side is the same.
    same = all(repr(before.get(one)) == repr(float(value)) for one, value in metrics.items())
    sys.stderr.write("the same as the run that was kept\n" if same else "NOT the same as the run that was kept\n")
    return 0 if same else 1


@app.command
def relive(file: Annotated[Path, Parameter(help="What tocsin broker --trace wrote.")], /) -> int:
    """Give a live broker's events to its core again, under virtual time, and compare what the caches did.

    Exits with 1 where the hits, misses, evictions or bytes are not those of the live broker, or the trace tells none.
    """
    from tocsin.lab.simulators.trace_replay import replay_trace as again

    done = again(file)
    figures = done.figures
    sys.stdout.write(
        f"{done.events:,} events, {done.policy}: {figures.hits:,} hits, {figures.misses:,} misses, "
        f"{figures.evicted:,} evicted, {figures.expired:,} expired; compared {done.compared} times\n"
    )
    for one in done.differences:
        sys.stderr.write(f"{one}\n")
    if not done.compared:
        sys.stderr.write("nothing was compared: a broker writes its figures each minute and when it stops\n")
    else:
        sys.stderr.write("the same as the live broker\n" if done.same else "NOT the same as the live broker\n")
    return 0 if done.same else 1


def _tell(name: str) -> None:
    from tocsin.lab.experiments import registry

    experiment = registry.experiment(name)
    said = [
        f"{experiment.name}: {experiment.title}",
        "",
        experiment.about,
        f"Source: {experiment.source}.",
        "",
        "Parameters",
    ]
    said += [f"  {one.name} = {one.default}: {one.about}" for one in experiment.parameters]
    said += ["", "Sweeps"]
    for sweep in experiment.sweeps:
        said.append(f"  {sweep.name}: {sweep.about}")
        said += [f"    {', '.join(axis.names)}: {', '.join(map(_point, axis.points))}" for axis in sweep.axes]
    said += ["", "Metrics"]
    said += [f"  {one.name}{f' ({one.unit})' if one.unit else ''}: {one.about}" for one in experiment.metrics]
    said += ["", "Claims", *(f"  {one.name}: {one.says} ({one.where})" for one in experiment.claims)]
    sys.stdout.write("\n".join(said) + "\n")


def _point(point: tuple[Any, ...]) -> str:
    return str(point[0]) if len(point) == 1 else f"({', '.join(map(str, point))})"


def _say_verdicts(verdicts: Mapping[str, Any]) -> None:
    for name, judged in verdicts.items():
        why = f" ({judged.because})" if judged.because else ""
        sys.stdout.write(f"{judged.verdict}: {name}: {judged.figures}{why}\n")


def _say_lived(outcome: Any) -> int:
    sys.stdout.write(f"live and simulation: {outcome.verdict} ({outcome.agreed} of {outcome.compared} figures)\n")
    sys.stdout.write(f"traces relived: {'the same' if outcome.relived else 'NOT the same'}\n{outcome.report}\n")
    return 0 if outcome.good else 1


@contextmanager
def _goes_on(name: str, *, fresh: bool) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        command = "the same command without --fresh" if fresh else "the same command"
        sys.stderr.write(f"{name}: stopped; what is finished is kept, and {command} goes on from there\n")
        raise


@contextmanager
def _progress(name: str) -> Iterator[OnFinished]:
    """A bar on standard error while somebody looks at it; in a log, a line for every tenth of the way."""
    if not sys.stderr.isatty():
        said = 0

        def say(_cell: object, finished: int, total: int) -> None:
            nonlocal said
            if finished * 10 // total > said or finished == total:
                said = finished * 10 // total
                sys.stderr.write(f"{name}: {finished} of {total}\n")
                sys.stderr.flush()

        yield say
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield lambda _cell, finished, total: bar.update(task, completed=finished, total=total)
