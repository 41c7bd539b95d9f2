"""A whole cluster inside the test process, without HTTP: scripts in, answers out."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from pyspark.sql import SparkSession

from tocsin import compose
from tocsin.cluster.catalog.refs import Ref
from tocsin.cluster.channels.executions.limits import ExecutionLimits
from tocsin.cluster.engine.engine import Engine
from tocsin.cluster.feeds.limits import USUAL_LIMITS, FeedLimits
from tocsin.cluster.statements.outcomes import USUAL_OPTIONS, ScriptOptions
from tocsin.settings import Settings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StatementAnswer:
    kind: str
    summary: dict[str, Any]
    rows: list[Any] | None


def held_until(go: threading.Event) -> Callable[[Ref], None]:
    """A `before_landing` that lets nothing land before `go` is set."""

    def hold(_dataset: Ref) -> None:
        go.wait()

    return hold


class LocalCluster:
    """Runs its event loop on a thread of its own, so that tests (Hypothesis above all) can be plain functions."""

    def __init__(
        self,
        spark: SparkSession,
        data: Path,
        *,
        limits: ExecutionLimits | None = None,
        feed_limits: FeedLimits = USUAL_LIMITS,
        make_engine: Callable[..., Engine] = Engine,
        **flags: Any,
    ) -> None:
        self.before_landing: Callable[[Ref], None] = lambda _dataset: None
        """Called before a batch of a feed lands, with the dataset."""

        def before_landing(dataset: Ref) -> None:
            self.before_landing(dataset)

        self.now: Callable[[], datetime] = lambda: datetime.now(UTC)
        """The clock that statements see."""

        feed_limits = replace(feed_limits, before_landing=before_landing)
        self.settings = Settings.load(None, {}, {"data": data, **flags})
        self._spark = spark
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._stack = AsyncExitStack()
        self.cluster = self.wait(
            self._stack.enter_async_context(
                compose.assemble_cluster(
                    self.settings,
                    spark,
                    limits=limits,
                    feed_limits=feed_limits,
                    make_engine=make_engine,
                    statement_clock=lambda: self.now(),  # noqa: PLW0108 - tests replace it
                )
            )
        )

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def run(
        self, script: str, *, stream: bool = False, options: ScriptOptions = USUAL_OPTIONS
    ) -> list[StatementAnswer]:
        """Every statement's answer; raises the first failing statement's error."""
        return self.wait(self.run_async(script, stream, options))

    async def run_async(
        self, script: str, stream: bool = False, options: ScriptOptions = USUAL_OPTIONS
    ) -> list[StatementAnswer]:
        answers = []
        async for outcome in self.cluster.statements.run(script, stream=stream, options=options):
            rows = None
            if outcome.rows is not None:
                try:
                    rows = [json.loads(row) async for batch in outcome.rows.batches for row in batch]
                finally:
                    await outcome.rows.close()
            answers.append(StatementAnswer(outcome.kind, dict(outcome.summary), rows))
        return answers

    def rows(self, script: str, *, stream: bool = False) -> list[Any]:
        """The rows of the script's last statement."""
        rows = self.run(script, stream=stream)[-1].rows
        assert rows is not None
        return rows

    def close(self) -> None:
        self.wait(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
