"""Builds the statements for the city's datasets, feeds and channels, with the periods of Table III at a given speed.

The hour is played faster than it was, so every period and window is divided by the speed.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any, Final

from tocsin.lab.scenarios.city import CHANNELS

DATAVERSE: Final = "city"
# The fields of a report and of a shelter in a result, in the scenario's order.
_REPORT: Final = "emergencyType severity east_m north_m radius_m message".split()
_SHELTER: Final = "name east_m north_m beds".split()
# The shortest period that a channel accepts.
_SHORTEST_S: Final = 0.1


def script(speed: float) -> str:
    """Returns all statements. Raises `ValueError` if a period would be too short."""
    text = resources.files(__package__).joinpath("city.sql").read_text("utf-8")
    replacements = {"report": _object("r", _REPORT), "shelter": _object("s", _SHELTER)}
    for channel, _, period_s in CHANNELS:
        if period_s / speed < _SHORTEST_S:
            raise ValueError(f"speed: a period of {period_s:g} s would be shorter than {_SHORTEST_S} s")
        replacements[channel] = f"PT{period_s / speed:.6f}S"
    for name, text_for_name in replacements.items():
        text = text.replace(f"{{{{{name}}}}}", text_for_name)
    return text


def report_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Converts a report of a scenario to a record of the feed."""
    return {**record, "zone": {"center": [record["east_m"], record["north_m"]], "radius": record["radius_m"]}}


def shelter_record(record: Mapping[str, Any]) -> dict[str, Any]:
    return {**record, "place": [record["east_m"], record["north_m"]]}


def location_record(name: str, east_m: float, north_m: float) -> dict[str, Any]:
    return {"userName": name, "place": [east_m, north_m]}


def _object(variable: str, fields: list[str]) -> str:
    return "{" + ", ".join(f'"{name}": {variable}.{name}' for name in fields) + "}"
