"""What stands behind the broker's service, and who may reach it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any, get_args

import pytest

import tocsin.broker
from tests.support.in_process_broker import broker
from tests.support.sparkless_cluster import world
from tests.unit.test_layering import imports
from tocsin.broker.core.actions import Action

BROKER = Path(tocsin.broker.__file__ or "").parent
OUTSIDE = sorted(path for folder in ("transports", "http") for path in (BROKER / folder).glob("*.py"))
BEHIND = (
    "core.", "core_runtime.", "delivery.fanout.", "delivery.acks.", "delivery.pulls.", "cluster_link.link.",
    "cluster_link.backend_index.", "subscriptions.SubscriptionService",
)  # fmt: skip


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_transports_and_routes_speak_to_the_service_and_to_nothing_behind_it(path: Path) -> None:
    source = path.read_text("utf-8")
    imported = {each.module.removeprefix("tocsin.broker.") for each in imports(source, "tocsin.broker")}
    assert (
        sorted(name for name in imported if name.startswith(BEHIND) or name.startswith("tocsin.store.broker.int")) == []
    )
    reached = {node.attr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)}
    assert "_parts" not in reached


async def test_every_action_of_the_core_has_a_performer(tmp_path: Path) -> None:
    async with world(tmp_path / "cluster") as here, broker(tmp_path, here.url) as made:
        performers: Any = made.parts.runtime.performers
        assert set(performers) == set(get_args(Action))
