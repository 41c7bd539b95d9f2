"""The thread that watches the engine: pings the JVM, and replaces it when it is dead or does not answer.

All decisions are in `watchdog`; this thread only performs them. It is a thread and not a task, because starting and
killing a JVM blocks; pings have another thread, because a ping may hang.
"""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from random import Random
from typing import Any, Final

import structlog
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tocsin.cluster.engine import watchdog
from tocsin.cluster.engine.engine import Engine
from tocsin.cluster.engine.engine_session import EngineSession
from tocsin.cluster.engine.heap_watch import HeapWatch
from tocsin.cluster.engine.watchdog import Watchdog, WatchdogLimits
from tocsin.pipeline.session import SparkSessions

_log = structlog.get_logger()

LOOK_EVERY_S: Final = 0.5

_Ping = Callable[[EngineSession], watchdog.PingAnswered]


class EngineWatch:
    """Runs from `start` to `close`. Its properties may be read on any thread, and never call the JVM."""

    def __init__(
        self, engine: Engine, sessions: SparkSessions, limits: WatchdogLimits, *, ping: _Ping | None = None
    ) -> None:
        self._engine = engine
        engine.trouble = self.trouble
        engine.request_replacement = self._request_replacement
        self._sessions = sessions
        self._ping = ping or self._ask
        self._watchdog = Watchdog(limits, time.monotonic(), Random())
        self._heap_watch = HeapWatch()
        self._events: queue.SimpleQueue[watchdog.WatchdogEvent] = queue.SimpleQueue()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine watch", daemon=True)
        self._pinged: EngineSession | None = None
        self._pings: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Blocks until the watch has ended; waits for a start that is under way."""
        self._ending.set()
        self._pings.put(False)
        if self._thread.is_alive():
            self._thread.join()

    # ------------------------------------------------------------ state

    def is_watching(self) -> bool:
        return self._thread.is_alive() or self._ending.is_set()

    def trouble(self) -> str | None:
        """Says why scripts cannot run now; None if they can."""
        trouble = self._watchdog.trouble(time.monotonic())
        if trouble is None and not self._engine.is_alive():
            return "the engine has stopped and is being replaced"
        return trouble

    def asked_by(self, asker: str) -> AbstractContextManager[None]:
        """See `Engine.asked_by`."""
        return self._engine.asked_by(asker)

    def retry_after_s(self) -> float:
        return self._watchdog.retry_after_s(time.monotonic())

    @property
    def replacements(self) -> int:
        return self._watchdog.replacements

    @property
    def last_answer_age_s(self) -> float:
        return max(0.0, time.monotonic() - self._watchdog.last_answer_s)

    @property
    def unstoppable(self) -> int:
        """Threads and tasks that could not be stopped and have not ended."""
        return self._engine.lost_threads + self._watchdog.stuck

    def _request_replacement(self, reason: str) -> bool:
        if self._watchdog.state == "up":
            self._events.put(watchdog.ReplacementRequested(reason))
        return self._thread.is_alive()

    # ------------------------------------------------------------ the watching thread

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                event: watchdog.WatchdogEvent = self._events.get(timeout=LOOK_EVERY_S)
            except queue.Empty:
                engine = self._engine
                event = watchdog.WatchdogTick(
                    not engine.is_alive(), engine.lost_askers, is_exhausted=engine.is_exhausted()
                )  # fmt: skip
            try:
                for action in self._watchdog.handle(event, time.monotonic()):
                    self._perform(action)
            except Exception as error:
                # Keep watching, whatever failed.
                _log.error("the engine's watch failed", exc_info=error)

    def _perform(self, action: watchdog.WatchdogAction) -> None:
        match action:
            case watchdog.SendPing():
                self._send_ping(self._engine.session)
            case watchdog.KillEngine(reason, is_overfull):
                _log.error("the engine is replaced", reason=reason, replacements=self._watchdog.replacements)
                if is_overfull:
                    self._engine.refused.engine_replaced(self._engine.names_of_lost_askers)
                # Abandon the session before killing it, so that no new work gets it and its own work sees the loss.
                self._engine.abandon()
                self._sessions.kill()
            case watchdog.StartEngine():
                self._start_engine()

    def _start_engine(self) -> None:
        if self._ending.is_set():
            return
        begun_s = time.monotonic()
        try:
            self._engine.adopt(self._sessions.start())
        except Exception as error:
            self._sessions.kill()
            _log.error("the engine could not be started", reason=str(error))
            self._events.put(watchdog.StartFailed(f"it could not be started: {error}"[:500]))
            return
        self._events.put(watchdog.StartSucceeded())
        _log.warning("the engine was replaced", seconds=round(time.monotonic() - begun_s, 1))

    # ------------------------------------------------------------ a thread for each session, since a ping may hang

    def _send_ping(self, session: EngineSession) -> None:
        if session is not self._pinged:
            self._pings.put(False)  # ends the thread of the previous session
            self._pinged, self._pings = session, queue.SimpleQueue()
            arguments = (session, self._pings)
            threading.Thread(target=self._answer_pings, args=arguments, name="engine ping", daemon=True).start()
        self._pings.put(True)

    def _answer_pings(self, session: EngineSession, pings: queue.SimpleQueue[bool]) -> None:
        while pings.get() and not session.is_lost:
            try:
                event: watchdog.WatchdogEvent = self._ping(session)
            except Exception:
                event = watchdog.PingFailed()
            if not session.is_lost:
                self._events.put(event)

    def _ask(self, session: EngineSession) -> watchdog.PingAnswered:
        context: Any = session.spark.sparkContext._jsc.sc()
        if context.isStopped():
            return watchdog.PingAnswered(is_stopped=True)
        load = session.tasks.read()
        if load is None:
            return watchdog.PingAnswered()
        over = [task for task in load.tasks if task.is_over]
        self._engine.refused.see_ended_jobs({task.group: task.asker for task in over})
        heaviest = self._heap_watch.find_heaviest(session.generation, load, time.monotonic())
        if heaviest is not None:
            _log.warning("a statement is stopped, because the engine is short of memory", asker=heaviest.asker)
            self._engine.stop_for_memory(heaviest.group)
        return watchdog.PingAnswered(stuck=len(over), slots=task_slots(context.master()))


def task_slots(master: str) -> int | None:
    """Returns how many tasks a local engine runs at once, if its master URL says so."""
    match = re.match(r"local\[(\d+)", master)
    return int(match[1]) if match else None


class EngineCollector(Collector):
    """Exports the engine's state to Prometheus."""

    def __init__(self, watch: EngineWatch) -> None:
        self._watch = watch

    def collect(self) -> Iterator[Metric]:
        up = float(self._watch.trouble() is None)
        yield GaugeMetricFamily("tocsin_engine_up", "1 while the engine answers pings, otherwise 0.", value=up)
        yield CounterMetricFamily(
            "tocsin_engine_replacements", "Engines started to replace failed ones.", value=self._watch.replacements
        )
        yield GaugeMetricFamily(
            "tocsin_engine_ping_age_seconds",
            "Time since the engine last answered a ping, in seconds.",
            value=self._watch.last_answer_age_s,
        )
        yield GaugeMetricFamily(
            "tocsin_engine_unstoppable",
            "Threads and tasks of the engine that did not end when they were cancelled.",
            value=self._watch.unstoppable,
        )
