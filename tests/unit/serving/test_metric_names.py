"""A metric's name has one meaning, whichever server shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.support.doc_tables import complete_application
from tests.support.in_process_broker import both
from tests.support.sparkless_cluster import fake_broker, world
from tocsin.serving.metrics import ServerMetrics


def meanings(text: str) -> dict[str, tuple[str, str]]:
    return {family.name: (family.type, family.documentation) for family in text_string_to_metric_families(text)}


def labels(text: str) -> dict[str, frozenset[str]]:
    return {
        sample.name: frozenset(sample.labels)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def agree(some: dict[str, Any], others: dict[str, Any]) -> None:
    assert {
        name: (some[name], others[name]) for name in some.keys() & others.keys() if some[name] != others[name]
    } == {}


async def test_no_name_means_one_thing_at_the_cluster_and_another_at_a_broker(tmp_path: Path) -> None:
    async with world(tmp_path / "cluster") as here, both(tmp_path / "broker", here) as made, fake_broker() as east:
        channel = await here.channel("c")
        # Something of everything that both tell of: who was told, and by whom.
        east.secret = await here.register("v.east", east.url)
        (one,) = await here.subscribe("v.c", "v.east", [1])
        held = await made.subscribe("ada", "v.c", 1)
        await here.execute(channel, {one: ["a"], int(held["interest"]): ["b"]})
        await east.until(lambda: east.got)
        of_cluster = (await here.ask("GET", "/metrics"))[1].decode()
        of_broker = (await made.ask("GET", "/metrics"))[1].decode()
    metrics = ServerMetrics()
    complete_application(metrics)
    every = {family.name: (family.type, family.documentation) for family in metrics.registry.collect()}
    assert "tocsin_cluster_announcements" in every
    agree(meanings(of_broker), meanings(of_cluster) | every)
    agree(labels(of_broker), labels(of_cluster))
