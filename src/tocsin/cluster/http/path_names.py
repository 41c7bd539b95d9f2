"""Names in paths."""

from __future__ import annotations

from aiohttp import web

from tocsin.cluster.catalog.catalog import DEFAULT


def full_name(text: str) -> tuple[str, str]:
    """Dataverse and name of `dataverse.name`, or of a name alone in the dataverse Default."""
    dataverse, dot, name = text.rpartition(".")
    return (dataverse if dot else DEFAULT), name


def path_name(request: web.Request) -> tuple[str, str]:
    return full_name(request.match_info["name"])
