"""A data folder that an older Tocsin made (revision 7adf2ca, `tocsin up --brokers 1` and README's five minutes) opens:
its rows, its subscriber with her password, her subscription, and the feed and the channel, which go on."""

from __future__ import annotations

import asyncio
import tarfile
from pathlib import Path

import orjson

from tests.support.real_brokers import QUICK, Subscriber, free_port
from tests.support.real_processes import ClusterProcess
from tests.support.waiting import WITHIN_S

FOLDER = Path(__file__).parents[2] / "support" / "data_folder_of_7adf2ca.tar.xz"
REPORT = {
    "emergencyType": "storm",
    "severity": 7,
    "impactZone": {"center": [-41.29, 174.78], "radius": 3000.0},
    "timestamp": "2026-11-16T10:00:00Z",
    "message": "Stay inside",
}


async def test_a_data_folder_of_an_older_tocsin_opens_and_goes_on(tmp_path: Path) -> None:
    with tarfile.open(FOLDER) as folder:
        folder.extractall(tmp_path)  # our own archive
    port = free_port()
    ann = Subscriber(f"http://127.0.0.1:{port}", "ann")
    with ClusterProcess(tmp_path, "--brokers", "1", **QUICK, TOCSIN_BROKER__HTTP__PORT=str(port)) as process:
        cluster = await asyncio.to_thread(process.ready)
        rows = "USE emergency; SELECT VALUE count(*) FROM Reports r; SELECT VALUE count(*) FROM Shelters s;"
        answer = await asyncio.to_thread(cluster.client.run, rows)
        assert [result["rows"] for result in answer.results[1:]] == [[7], [24]]
        await ann.enter()
        (subscription,) = (await ann.ask("GET", "/v1/subscriptions"))["subscriptions"]
        assert subscription["channel"] == "emergency.Alerts"
        ann.listen()
        feed = "/v1/feeds/emergency.ReportFeed"
        published = await asyncio.to_thread(cluster.client.ask, "POST", feed, orjson.dumps(REPORT))
        assert published.status == 200, published.body
        async with asyncio.timeout(WITHIN_S):
            while {"emergencyType": "storm", "message": "Stay inside"} not in ann.got.get(subscription["interest"], ()):
                await asyncio.sleep(0.02)
        await ann.leave()
