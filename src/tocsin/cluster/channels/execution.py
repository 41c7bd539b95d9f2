"""One execution of a channel: from one commit vector to the next, over all interests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import datetime

from tocsin.cluster.channels.culprits import Culprit, Search
from tocsin.cluster.channels.new_rows import NewRows
from tocsin.cluster.channels.reading import Reading, folder_of
from tocsin.language.channels import Called, Scan
from tocsin.pipeline.channels import running
from tocsin.pipeline.channels.interests import Ids, Interests
from tocsin.pipeline.channels.running import Found, Moment
from tocsin.wire.errors import StatementError


def executed(
    reading: Reading,
    interests: Interests,
    new_rows: NewRows,
    *,
    now: datetime,
    previous: datetime,
    is_stopped: Callable[[], bool] = lambda: False,
    search_begins: Callable[[StatementError], None] = lambda _error: None,
) -> tuple[Found, list[Culprit]]:
    """The results of every interest, without those of records, and of interests, that make the query fail.

    `search_begins` is told, on this thread, before these are looked for, which may take minutes."""
    query, engine = reading.query, reading.engine
    since = {one.since: reading.since.get(folder_of(one), 0) for one in query.watched}
    few = bool(reading.watched) and all(reading.is_small(folder) for folder in reading.watched)
    moment = Moment(now, previous, since, many=not few)

    def run(views: Mapping[str, str], among: Ids | None) -> Found:
        with ExitStack() as held:

            def name_of(scan: Scan | Called) -> str:
                if isinstance(scan, Called):
                    return engine.python.called(scan.function, scan.arguments)
                folder = folder_of(scan)
                if scan.new:
                    return views.get(folder) or held.enter_context(new_rows.view(reading, folder))
                snapshot, kind = reading.snapshots[folder], reading.entries[folder].type
                name = engine.views.of_snapshot(folder, snapshot, kind, pinned=True)
                held.callback(engine.views.unpin, name)
                return name

            return engine.asked(lambda: running.run(engine.spark, query, interests, name_of, moment, among))

    left = interests.left_out()
    culprits: list[Culprit] = []
    try:
        found = run({}, Ids(without=tuple(left)) if left else None)
        interests.worked(left)
    except StatementError as error:
        if is_stopped() or not any(scan.new for scan in query.scans):
            raise
        search_begins(error)
        found, culprits = Search(reading, interests, run, is_stopped, list(left)).without_culprits(error)
    known = [Culprit("", [str(one)], reason, one, known=True) for one, reason in left.items()]
    return found, culprits + known
