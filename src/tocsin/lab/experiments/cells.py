"""Runs the cells of a plan in parallel processes. The results are the same for any number of processes.

A cell gets its values and its seed and knows of nothing else, so the order of execution cannot matter. A digest of the
code is part of a cell's key: finished cells stay valid exactly as long as the code that computed them is unchanged.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import multiprocessing
import os
import shlex
import shutil
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache
from multiprocessing import connection
from pathlib import Path
from typing import Final

import tocsin
from tocsin.lab.experiments.declaration import Experiment, Run
from tocsin.lab.experiments.journal import Journal
from tocsin.lab.experiments.plan import Cell, Plan
from tocsin.lab.experiments.registry import find
from tocsin.lab.experiments.results import ResultsRow, RunResults
from tocsin.wire.errors import TocsinError

# The code that a cell's numbers depend on, beside its model's own file. A change of it invalidates finished cells.
_SOURCES: Final = ("rules", "broker/core", "lab/simulators", "lab/engine", "lab/workloads", "lab/scenarios")
_TRACES: Final = "traces"
_AHEAD: Final = 2  # cells queued per process, with the running one: no process idles, and an interruption is quick

OnFinished = Callable[[Cell, int, int], None]


class CellError(TocsinError):
    """A cell failed; the message names the cell and how to replay it."""

    code = "cell"


def code_digest(experiment: Experiment) -> str:
    """Returns a digest of the code that computes this experiment's numbers. Comments, docstrings and the format of the
    source do not change it, because they cannot change a number."""
    root = Path(tocsin.__file__).parent
    files = {path for source in _SOURCES for path in (root / source).rglob("*.py")}
    files |= model_files(Path(inspect.getfile(experiment.model)))
    digest = hashlib.sha256()
    for path in sorted(files):
        name = path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name
        digest.update(f"{name}\n{code_text(path.read_text('utf-8'))}\n".encode())
    return digest.hexdigest()


@cache
def code_text(source: str) -> str:
    """Returns the statements of a module in one format, without comments and docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            texts = [part for part in node.body if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)]
            node.body = [part for part in node.body if part not in texts]
    return ast.unparse(tree)


def model_files(model: Path) -> set[Path]:
    """Returns the model's file and the files of its folder that it imports, directly or indirectly."""
    files, waiting = set(), [model]
    while waiting:
        path = waiting.pop()
        if path in files or not path.exists():
            continue
        files.add(path)
        imports = (node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.ImportFrom))
        waiting += [
            model.parent / f"{(node.module or '').rpartition('.')[2]}.py" for node in imports if _in(model, node)
        ]
    return files


def _in(model: Path, imported: ast.ImportFrom) -> bool:
    package = (imported.module or "").split(".")[:-1]
    return bool(package) and model.parent.parts[-len(package) :] == tuple(package) and package[-1] != "experiments"


def run(
    plan: Plan,
    reference: str,
    folder: Path,
    *,
    processes: int = 1,
    fresh: bool = False,
    on_finished: OnFinished = lambda _cell, _run_cells, _total: None,
) -> tuple[RunResults, int]:
    """Runs the cells that the folder does not have yet. Returns all results in the plan's order, and the number of
    cells that were there before.

    `reference` is where worker processes find the experiment, `module:name`. Finished cells are saved at once. Raises
    `InputError` before the first run if the values of a cell do not go together.
    """
    plan.check()
    code = code_digest(plan.experiment)
    cells = list(plan.cells())
    with Journal(folder, fresh=fresh) as journal:
        keys = [cell.key(plan.experiment.name, code) for cell in cells]
        todo = {key: cell for key, cell in zip(keys, cells, strict=True) if journal.find(key) is None}
        known_before = len(set(keys)) - len(todo)
        total = len(set(keys))
        finished = known_before
        traces = _traces(folder / _TRACES, code, fresh=fresh)
        for cell, key, metrics in _run_cells(todo, reference, traces, processes):
            journal.keep(key, metrics)
            finished += 1
            on_finished(cell, finished, total)
        rows = [ResultsRow(cell, journal.find(key) or {}) for key, cell in zip(keys, cells, strict=True)]
    return RunResults(rows, code), known_before


def _traces(folder: Path, code: str, *, fresh: bool) -> Path:
    """Returns the folder for the workloads that the cells of this code share. Deletes those of other code."""
    current = folder / code[:16]
    for old in folder.glob("*"):
        if old.is_dir() and (fresh or old != current):
            shutil.rmtree(old)
        elif old.suffix == ".npz":
            old.unlink()
    return current


def _run_cell(experiment: Experiment, cell: Cell, shared: Path | None) -> dict[str, float]:
    """Runs one cell in this process. `CellError` says which cell failed."""
    if shared is not None:
        shared.mkdir(parents=True, exist_ok=True)
    try:
        metrics = dict(experiment.model(Run(dict(cell.values), cell.seed, shared=shared)))
    except TocsinError:
        raise
    except Exception as error:
        raise CellError(f"{cell}: {type(error).__name__}: {error}", hint=replay_hint(experiment, cell)) from error
    declared = {metric.name for metric in experiment.metrics}
    if set(metrics) != declared:
        raise CellError(f"{cell}: yielded {sorted(metrics)}, declared are {sorted(declared)}")
    return metrics


_FinishedCell = tuple[Cell, str, dict[str, float]]


def _run_cells(todo: dict[str, Cell], reference: str, shared: Path, processes: int) -> Iterator[_FinishedCell]:
    if processes <= 1 or len(todo) <= 1:
        experiment = find(reference)
        for key, cell in todo.items():
            yield cell, key, _run_cell(experiment, cell, shared)
        return
    with _pool(min(processes, len(todo))) as pool:
        waiting = deque(todo.items())
        running: dict[Future[dict[str, float]], tuple[str, Cell]] = {}
        while waiting or running:
            while waiting and len(running) < _AHEAD * processes:
                key, cell = waiting.popleft()
                with _delay_interrupts():
                    running[pool.submit(_work, reference, cell, shared)] = key, cell
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                key, cell = running.pop(future)
                try:
                    metrics = future.result()
                except BrokenProcessPool:
                    raise CellError(
                        "a worker process died, perhaps because memory was full",
                        hint="run the command again to continue; --processes 1 needs the least memory",
                    ) from None
                yield cell, key, metrics


@contextmanager
def _pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    before = set(multiprocessing.active_children())
    # Spawn instead of fork: workers then inherit neither threads nor state of the caller.
    pool = ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn"), initializer=_begin_worker)
    try:
        yield pool
        pool.shutdown()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        _end([child for child in multiprocessing.active_children() if child not in before])
        raise


@contextmanager
def _delay_interrupts() -> Iterator[None]:
    """Delays SIGINT while work is handed out: that may start a worker, and an interrupted start prints long tracebacks.

    The worker inherits the signal mask. For this process the mask is not enough: another thread of a library may take
    the signal, and Python then interrupts the main thread. So a handler remembers the signal until the block ends.
    """
    interrupted = False

    def remember(_signal: int, _frame: object) -> None:
        nonlocal interrupted
        interrupted = True

    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, remember) if in_main else None
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if in_main:
            signal.signal(signal.SIGINT, handler)
    if interrupted:
        raise KeyboardInterrupt


def _end(workers: Sequence[multiprocessing.process.BaseProcess]) -> None:
    for worker in workers:
        worker.terminate()
    for worker in workers:
        worker.join()


def _begin_worker() -> None:
    # Ctrl-C reaches the whole process group: workers end silently, and the parent reports.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)  # the parent was killed, so nobody can end this worker or use its cell

    threading.Thread(target=watch, daemon=True).start()


def _work(reference: str, cell: Cell, shared: Path) -> dict[str, float]:
    return _run_cell(find(reference), cell, shared)


def replay_hint(experiment: Experiment, cell: Cell) -> str:
    """Returns the command that runs this cell alone."""
    # Leave out empty values: they are the default.
    settings = " ".join(f"--set {shlex.quote(f'{name}={value}')}" for name, value in cell.values if value != "")
    return f"replay: tocsin lab replay-cell {experiment.name} --seed {cell.seed} {settings}"
