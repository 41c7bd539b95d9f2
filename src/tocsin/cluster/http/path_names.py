"""Parses dataverse and name from a path."""

from __future__ import annotations

from aiohttp import web

from tocsin.cluster.catalog.catalog import DEFAULT


def split_full_name(text: str) -> tuple[str, str]:
    """Splits `dataverse.name`; a name alone is in the dataverse Default."""
    dataverse, dot, name = text.rpartition(".")
    return (dataverse if dot else DEFAULT), name


def path_name(request: web.Request) -> tuple[str, str]:
    return split_full_name(request.match_info["name"])
