"""The catalog entries of brokers, channels and procedures, and their JSON form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from tocsin.cluster.catalog.refs import (
    Ref,
    broker_ref,
    channel_ref,
    dataset_ref,
    procedure_ref,
    ref_from_json,
    ref_to_json,
)
from tocsin.cluster.catalog.type_json import type_from_json, type_to_json
from tocsin.rules.model.types import Type
from tocsin.rules.model.values import Duration, datetime_text, duration_text, parse_datetime, parse_duration
from tocsin.store.cluster.interface import CatalogRow

SUBSCRIPTIONS: Final = "Subscriptions"
RESULTS: Final = "Results"


@dataclass(frozen=True, slots=True)
class BrokerEntry:
    """The cluster sends announcements to `url`; a broker without a URL polls for them."""

    dataverse: str
    name: str
    url: str | None

    @property
    def ref(self) -> Ref:
        return broker_ref(self.dataverse, self.name)

    @property
    def uses(self) -> tuple[Ref, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class ChannelEntry:
    """The query is that of the function, or `body` if the channel uses no function.

    No other channel ever gets the same `channel_id`. Tick k of a channel with a period is due at `anchor` + k
    periods (`rules.periods`), with calendar months. `uses` are the function, or the datasets and functions that the
    body names."""

    dataverse: str
    name: str
    channel_id: int
    continuous: bool
    push: bool
    function: Ref | None
    parameters: tuple[str, ...]
    types: tuple[Type, ...]
    body: str | None
    period: Duration | None
    anchor: datetime
    retention_s: float | None
    retention_bytes: int | None
    uses: tuple[Ref, ...]

    @property
    def ref(self) -> Ref:
        return channel_ref(self.dataverse, self.name)

    @property
    def subscriptions(self) -> Ref:
        """The virtual dataset that shows the channel's subscriptions."""
        return dataset_ref(self.dataverse, self.name + SUBSCRIPTIONS)

    @property
    def results(self) -> Ref:
        """The virtual dataset that shows the channel's results."""
        return dataset_ref(self.dataverse, self.name + RESULTS)


@dataclass(frozen=True, slots=True)
class ProcedureEntry:
    """`body` is one statement. No other procedure ever gets the same `procedure_id`. With a period, tick k is due at
    `anchor` + k periods. `uses` are the datasets and functions that the body names."""

    dataverse: str
    name: str
    procedure_id: str
    parameters: tuple[str, ...]
    body: str
    period: Duration | None
    anchor: datetime
    uses: tuple[Ref, ...]

    @property
    def arity(self) -> int:
        return len(self.parameters)

    @property
    def ref(self) -> Ref:
        return procedure_ref(self.dataverse, self.name, self.arity)


def channel_of(dataset: Ref) -> Ref | None:
    """Returns the channel whose subscriptions or results a dataset of this name would show."""
    if dataset.kind == "dataset":
        for suffix in (SUBSCRIPTIONS, RESULTS):
            if dataset.name.endswith(suffix) and dataset.name != suffix:
                return channel_ref(dataset.dataverse, dataset.name.removesuffix(suffix))
    return None


# ---------------------------------------------------------------- JSON


def broker_to_json(entry: BrokerEntry) -> dict[str, Any]:
    return {"url": entry.url}


def channel_to_json(entry: ChannelEntry) -> dict[str, Any]:
    return {
        "channel_id": entry.channel_id,
        "continuous": entry.continuous,
        "push": entry.push,
        "function": ref_to_json(entry.function),
        "parameters": list(entry.parameters),
        "types": [type_to_json(type_) for type_ in entry.types],
        "body": entry.body,
        "period": _period_to_json(entry.period),
        "anchor": datetime_text(entry.anchor),
        "retention_s": entry.retention_s,
        "retention_bytes": entry.retention_bytes,
        "uses": [ref_to_json(used) for used in entry.uses],
    }


def procedure_to_json(entry: ProcedureEntry) -> dict[str, Any]:
    return {
        "procedure_id": entry.procedure_id,
        "parameters": list(entry.parameters),
        "body": entry.body,
        "period": _period_to_json(entry.period),
        "anchor": datetime_text(entry.anchor),
        "uses": [ref_to_json(used) for used in entry.uses],
    }


def _period_to_json(period: Duration | None) -> str | None:
    return None if period is None else duration_text(period)


def _period_from(value: str | None) -> Duration | None:
    return None if value is None else parse_duration(value)


def _read_broker(row: CatalogRow, body: dict[str, Any]) -> BrokerEntry:
    return BrokerEntry(row.dataverse, row.name, body["url"])


def _read_channel(row: CatalogRow, body: dict[str, Any]) -> ChannelEntry:
    return ChannelEntry(
        row.dataverse,
        row.name,
        channel_id=body["channel_id"],
        continuous=body["continuous"],
        push=body["push"],
        function=ref_from_json(body["function"]),
        parameters=tuple(body["parameters"]),
        types=tuple(type_from_json(type_) for type_ in body["types"]),
        body=body["body"],
        period=_period_from(body["period"]),
        anchor=parse_datetime(body["anchor"]),
        retention_s=body["retention_s"],
        retention_bytes=body["retention_bytes"],
        uses=tuple(Ref(*used) for used in body["uses"]),
    )


def _read_procedure(row: CatalogRow, body: dict[str, Any]) -> ProcedureEntry:
    name, _, _ = row.name.rpartition("@")
    return ProcedureEntry(
        row.dataverse,
        name,
        procedure_id=body["procedure_id"],
        parameters=tuple(body["parameters"]),
        body=body["body"],
        period=_period_from(body["period"]),
        anchor=parse_datetime(body["anchor"]),
        uses=tuple(Ref(*used) for used in body["uses"]),
    )


READERS: Final[dict[str, Callable[[CatalogRow, dict[str, Any]], BrokerEntry | ChannelEntry | ProcedureEntry]]] = {
    "broker": _read_broker,
    "channel": _read_channel,
    "procedure": _read_procedure,
}
