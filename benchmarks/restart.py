"""Measures how soon the channels of a cluster deliver after a restart: ten channels of different kinds.

python -m benchmarks.restart [--small]

The first run creates the channels and their subscriptions. Each later run starts the cluster on the same folder,
publishes one record that all channels match as soon as the cluster is ready, and waits for the first results of each.
Wall times: the machine should do nothing else.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.harness import Bench, read_options
from benchmarks.running import RunningCluster, cluster
from tocsin.pipeline.java import ensure_java

FIRST_RESULTS_S: Final = 20.0
_GIVE_UP_S: Final = 300.0
_RESULTS: Final = "tocsin_channel_results"

DATASETS: Final = """
CREATE TYPE Report AS { id: bigint, kind: string, severity: int, zone: circle, at: datetime, text: string,
                        tags: [string] };
CREATE ACTIVE DATASET Reports(Report) PRIMARY KEY id;
CREATE TYPE Shelter AS { name: string, location: point };
CREATE DATASET Shelters(Shelter) PRIMARY KEY name;
CREATE FEED Incoming WITH {"adapter-name": "http_adapter", "type-name": "Report", "format": "json"};
CONNECT FEED Incoming TO DATASET Reports;
START FEED Incoming;
CREATE BROKER Bench AT "http://127.0.0.1:9/announcements";
INSERT INTO Shelters {"name": "hall", "location": create_point(33.0, -117.0)};
"""
# Name, parameters, query, and the arguments of the subscription with number i.
CHANNELS: Final[tuple[tuple[str, str, str, str], ...]] = (
    ("OfKind", "kind", "r.kind = kind", '"kind{i}"'),
    ("Severe", "least", "r.severity >= least", "{i}"),
    ("Around", "place: point", "geo_intersect(r.zone, place)", "create_point(33.0 + {i}.0 / 1000.0, -117.0)"),
    ("Between", "low, high", "r.severity BETWEEN low AND high", "{i}, {i} + 60"),
    ("Tagged", "tag", "tag IN r.tags", '"tag{i}"'),
    ("Beginning", "beginning", "starts_with(r.text, beginning)", '"word{i} "'),
    ("Keyword", "word", "contains(r.text, word)", '"word{i} "'),
    ("Pattern", "pattern", "r.text LIKE pattern", '"%word{i} %"'),
    ("Words", "words", 'ftcontains(r.text, words, {"mode": "any"})', '"word{i} other{i}"'),
)  # fmt: skip
WITH_SHELTERS: Final = ("OfKind", "Around")
SHELTERS: Final = ", (SELECT VALUE s.name FROM Shelters s WHERE geo_intersect(r.zone, s.location)) AS shelters"
COUNTS: Final = """
CREATE CONTINUOUS CHANNEL Counts(kind) {
  SELECT count(*) AS reports, max(r.severity) AS worst FROM Reports r WHERE is_new(r) AND r.kind = kind GROUP BY kind
};
"""


def create(running: RunningCluster, subscriptions: int) -> None:
    running.run(DATASETS)
    names = [(name, arguments) for name, _, _, arguments in CHANNELS]
    for name, parameters, condition, _ in CHANNELS:
        outputs = "r.id, r.text" + (SHELTERS if name in WITH_SHELTERS else "")
        running.run(
            f"CREATE CONTINUOUS CHANNEL {name}({parameters}) {{ SELECT {outputs} FROM Reports r"
            f" WHERE is_new(r) AND {condition} }};"
        )
    running.run(COUNTS)
    for name, arguments in (*names, ("Counts", '"kind{i}"')):
        for begin in range(0, subscriptions, 100):
            running.run("".join(
                f"SUBSCRIBE TO {name}({arguments.replace('{i}', str(i))}) ON Bench;"
                for i in range(begin, min(begin + 100, subscriptions))
            ))  # fmt: skip


def publish(running: RunningCluster, number: int) -> None:
    record = {
        "id": number, "kind": "kind1", "severity": 50, "zone": {"center": [33.0, -117.0], "radius": 5000.0},
        "at": "2026-11-15T08:30:00Z", "text": "word1 word2 rises", "tags": ["tag1"],
    }  # fmt: skip
    request = urllib.request.Request(
        f"{running.address}/v1/feeds/Incoming", json.dumps(record).encode(), {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request).close()


def results(running: RunningCluster) -> dict[str, float]:
    """The number of results that each channel has found since the start."""
    with urllib.request.urlopen(f"{running.address}/metrics") as answer:
        text = answer.read().decode()
    return {
        sample.labels["channel"].rpartition(".")[2]: sample.value
        for family in text_string_to_metric_families(text)
        if family.name == _RESULTS
        for sample in family.samples
        if sample.name == f"{_RESULTS}_total"
    }


def first_results(running: RunningCluster, begun_s: float) -> dict[str, float]:
    """Seconds until each channel has found its first results."""
    found_s: dict[str, float] = {}
    while len(found_s) < len(CHANNELS) + 1:
        after_s = time.monotonic() - begun_s
        for channel, count in results(running).items():
            if count and channel not in found_s:
                found_s[channel] = after_s
        if after_s > _GIVE_UP_S:
            missing = {name for name, *_ in CHANNELS} | {"Counts"}
            raise TimeoutError(f"no results of {', '.join(sorted(missing - found_s.keys()))}")
        time.sleep(0.05)
    return found_s


def main() -> None:
    small = read_options(__doc__ or "", small="fewer subscriptions, one restart: to see that it runs").small
    ensure_java()
    bench = Bench("restart")
    slowest, ready = [], []
    with tempfile.TemporaryDirectory(prefix="tocsin-bench-") as scratch:
        data = Path(scratch) / "data"
        with cluster(data) as running:
            create(running, 20 if small else 1_000)
        for turn in range(1 if small else 3):
            started_s = time.monotonic()
            with cluster(data) as running:
                ready_s = time.monotonic()
                ready.append(ready_s - started_s)
                publish(running, turn)
                found_s = first_results(running, ready_s)
            slowest.append(max(found_s.values()))
            seconds = ", ".join(f"{name} {after_s:.1f}" for name, after_s in sorted(found_s.items()))
            bench.note(f"restart {turn + 1}: ready after {ready[-1]:.1f} s; first results after {seconds} s")
    bench.bar("first results of the slowest of ten channels after readiness", statistics.median(slowest),
              bar=FIRST_RESULTS_S, unit="s")  # fmt: skip
    bench.note(f"ready after {statistics.median(ready):.1f} s (median)")
    bench.finish()


if __name__ == "__main__":
    main()
