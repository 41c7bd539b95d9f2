"""Measures how brokers fetch results: the sweep of the original's measurements, and one fetch of a thousand interests,
compared with a request for each and with a query for each.

python -m benchmarks.fetch [--small]

Round trips are wall times of a waiting client, including the parsing; costs are CPU times.
"""

from __future__ import annotations

import http.client
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from benchmarks import running
from benchmarks.baselines.fetch import QueryEach
from benchmarks.harness import Bench, Compared, process_cpu_s, read_options, with_children_cpu_s
from tocsin.pipeline.java import ensure_java
from tocsin.rules.model.cursors import Range
from tocsin.wire.cursors import cursor_text, parse_cursor
from tocsin.wire.results import FrameReader, fetch_request

# As in the dissertation's Tables 6.1 to 6.3: queries, or kilobytes, and the milliseconds that AsterixDB 0.9.5 took.
TABLE_1: Final = {10: 40, 100: 350, 300: 1_000, 500: 1_600, 800: 2_700, 1_000: 3_200, 1_500: 4_500}
TABLE_2: Final = {10: 200, 100: 1_600, 300: 4_800, 500: 8_800, 800: 12_800, 1_000: 16_600}
TABLE_3: Final = {9: 55, 43: 226, 87: 437, 406: 2_397, 733: 4_440, 928: 5_582, 1_486: 8_901}
SMALL_BYTES: Final = 88
LARGE_BYTES: Final = 9_000
KILOBYTE: Final = 1_000
INTERESTS: Final = 1_000
ORIGINAL: Final = "AsterixDB, as printed"


@dataclass(frozen=True, slots=True)
class Size:
    rounds: int = 5
    fetches: int = 20
    queries: int = 40
    repeats: int = 7


QUICK: Final = Size(rounds=3, fetches=10, queries=10, repeats=3)


def main() -> None:
    size = QUICK if read_options(__doc__, small="few rounds: to see that it runs").small else Size()
    bench = Bench("fetch")
    bench.note(f"load of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory(prefix="tocsin-bench-") as scratch:
        ensure_java()
        with running.cluster(Path(scratch) / "cluster") as cluster:
            broker = Broker(cluster)
            small = broker.with_results([SMALL_BYTES] * max(TABLE_1))
            large = broker.with_results([LARGE_BYTES] * max(TABLE_2))
            single = broker.with_results([kilobytes * KILOBYTE for kilobytes in TABLE_3])
            sweep(bench, broker, small, large, single, size)
            beside(bench, broker, small[:INTERESTS], Path(scratch) / "spark", size)
    bench.finish()


class Broker:
    """A client with one connection that is kept open, a channel, and subscriptions with a result each."""

    def __init__(self, cluster: running.RunningCluster) -> None:
        self.cluster = cluster
        self._connection = http.client.HTTPConnection(urlsplit(cluster.address).netloc)
        self._keys = 0
        cluster.run(
            "CREATE TYPE News AS {id: bigint, text: string}; CREATE ACTIVE DATASET D(News) PRIMARY KEY id;"
            "CREATE CONTINUOUS CHANNEL c(k: bigint) { SELECT VALUE r.text FROM D r WHERE is_new(r) AND r.id = k };"
        )
        self.ask("PUT", "/v1/brokers/b", orjson.dumps({"url": None}))

    def ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        self._connection.request(method, path, body)
        with self._connection.getresponse() as answer:
            said = answer.read()
        if answer.status not in (200, 201):
            raise RuntimeError(f"{answer.status}: {said[:500]!r}")
        return said

    def with_results(self, sizes_bytes: Sequence[int]) -> list[Range]:
        """New interests, each of which has a result of this size."""
        keys = range(self._keys, self._keys + len(sizes_bytes))
        self._keys = keys.stop
        wanted = [{"parameters": [key]} for key in keys]
        made: Any = orjson.loads(
            self.ask(
                "POST", "/v1/channels/c/subscriptions", orjson.dumps({"broker": "Default.b", "subscriptions": wanted})
            )
        )
        interests = [
            Range(subscription["interest"], parse_cursor(subscription["since"]))
            for subscription in made["subscriptions"]
        ]
        lines = [
            orjson.dumps({"id": key, "text": f"{key} ".ljust(size_bytes - 2, "x")})
            for key, size_bytes in zip(keys, sizes_bytes, strict=True)
        ]
        for at in range(0, len(lines), 500):
            self.cluster.run(f"INSERT INTO D [{b','.join(lines[at : at + 500]).decode()}];")
        until_s = time.monotonic() + 120
        while sorted(self.fetch(interests)) != sorted(sizes_bytes):
            if time.monotonic() > until_s:
                raise RuntimeError("the results did not come")
            time.sleep(0.2)
        return interests

    def fetch(self, ranges: Sequence[Range]) -> list[int]:
        """One request for all; the sizes of the results, cut out as a broker does."""
        reader = FrameReader()
        said = self.ask("POST", "/v1/results:fetch", fetch_request(ranges))
        sizes_bytes = [len(result.payload) for part in reader.feed(said) for result in part.results]
        if reader.check() is not None:
            raise RuntimeError("the answer was not whole")
        return sizes_bytes

    def fetch_each(self, ranges: Sequence[Range]) -> int:
        """One request for each, on a connection that is kept open."""
        paths = [f"/v1/results/{range_.interest}?after={cursor_text(range_.after)}" for range_ in ranges]
        return sum(len(orjson.loads(self.ask("GET", path))["results"]) for path in paths)


def sweep(
    bench: Bench, broker: Broker, small: Sequence[Range], large: Sequence[Range], single: Sequence[Range], size: Size
) -> None:
    def shown(what: str, ranges: Sequence[Range], printed_ms: int) -> None:
        taken = []
        for _ in range(size.repeats):
            began_s = time.perf_counter()
            broker.fetch(ranges)
            taken.append(time.perf_counter() - began_s)
        taken_s, printed_s = statistics.median(taken), printed_ms / 1_000
        found = Compared(what, taken_s, printed_s, taken_s / printed_s, max(taken) / min(taken))
        bench.compared(f"round trip: {what}", found, bar=None, baseline=ORIGINAL)

    broker.fetch(small)
    for count, printed_ms in TABLE_1.items():
        shown(f"{count:,} results of {SMALL_BYTES} B", small[:count], printed_ms)
    for count, printed_ms in TABLE_2.items():
        shown(f"{count:,} results of {LARGE_BYTES // KILOBYTE} KB", large[:count], printed_ms)
    for interest, (kilobytes, printed_ms) in zip(single, TABLE_3.items(), strict=True):
        shown(f"one result of {kilobytes:,} KB", [interest], printed_ms)
    bench.note(
        "What is printed was measured by others on another machine (Apple M1 Pro), one query per result; the noise of "
        "a round trip is the slowest of its repetitions over the quickest."
    )


def beside(bench: Bench, broker: Broker, ranges: Sequence[Range], folder: Path, size: Size) -> None:
    """The CPU that a thousand results of a thousand interests cost."""
    spark = QueryEach(folder, [(str(range_.interest), "x" * SMALL_BYTES) for range_ in ranges])
    cluster_s = broker.cluster.cpu_s
    one_fetch: list[float] = []
    own: list[float] = []
    requests: list[float] = []
    queried: list[float] = []

    def used(clock: Callable[[], float], work: Callable[[], object]) -> float:
        begun = clock()
        work()
        return clock() - begun

    def fetches() -> None:
        for _ in range(size.fetches):
            if len(broker.fetch(ranges)) != len(ranges):
                raise RuntimeError("a result is missing")

    def queries() -> None:
        for range_ in ranges[: size.queries]:
            spark.ask(str(range_.interest))

    def spark_s() -> float:
        # The cluster is a child of this process as well.
        return with_children_cpu_s() - cluster_s()

    try:
        fetches()
        queries()
        broker.fetch_each(ranges)
        for _ in range(size.rounds):
            own_before_s = process_cpu_s()
            one_fetch.append(used(cluster_s, fetches) / size.fetches)
            own.append((process_cpu_s() - own_before_s) / size.fetches)
            requests.append(used(cluster_s, lambda: broker.fetch_each(ranges)))
            queried.append(used(spark_s, queries) / size.queries * len(ranges))
            one_fetch[-1] = (one_fetch[-1] + used(cluster_s, fetches) / size.fetches) / 2
    finally:
        spark.stop()
    cost_s = statistics.median(one_fetch)
    for what, taken, bar in (
        ("a request for each on one connection", requests, 15),
        (f"a Spark SQL query for each (extrapolated from {size.queries})", queried, 100),
    ):
        ratio = statistics.median(theirs / mine for theirs, mine in zip(taken, one_fetch, strict=True))
        bench.reached(f"{len(ranges):,} results in one fetch: less CPU than {what}", ratio, bar=bar, unit="×")
        bench.note(f"{what}: {statistics.median(taken) * 1_000:.0f} ms of CPU for {len(ranges):,} results")
    bench.note(
        f"one fetch: {cost_s * 1_000:.1f} ms of the cluster's CPU for {len(ranges):,} results, and "
        f"{statistics.median(own) * 1_000:.1f} ms of the client's"
    )


if __name__ == "__main__":
    main()
