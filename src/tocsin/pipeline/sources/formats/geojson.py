"""Reads GeoJSON (RFC 7946): each feature becomes a record.

    properties    fields of their names
    id            the field `id`, before a property of that name
    geometry      the field `geometry`: Point a point, LineString of two positions a line, Polygon without holes a
                  polygon; any other stays the object that it is, in GeoJSON's own order of coordinates
    a third coordinate of a Point    the field `altitude`, unless there is a property of that name

GeoJSON writes (longitude, latitude); a point here is (latitude, longitude), as in `create_point(latitude, longitude)`.
The reader therefore swaps the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Any

from tocsin.rules.model.type_check import describe_value
from tocsin.rules.model.values import Line, Point, Polygon


def records(document: Any) -> Iterator[dict[str, Any]]:
    """The features of a FeatureCollection, or the single Feature. The ValueError says what is wrong with it. The
    features may be an iterator, so that they need not all be in memory at once.
    """
    kind = document.get("type") if isinstance(document, dict) else None
    if kind == "Feature":
        yield _record(document, 0)
    elif kind == "FeatureCollection":
        features = document.get("features")
        if not isinstance(features, list | Iterator):
            raise ValueError(f"expected an array of features, got {describe_value(features)}")
        for index, feature in enumerate(features):
            yield _record(feature, index)
    else:
        got = describe_value(document) if kind is None else f"a {kind}"
        raise ValueError(f"expected a GeoJSON Feature or FeatureCollection, got {got}")


def _record(feature: Any, place: int) -> dict[str, Any]:
    if not isinstance(feature, dict) or feature.get("type") != "Feature":
        raise ValueError(f"feature {place}: expected an object of the type Feature, got {describe_value(feature)}")
    properties = feature.get("properties")
    if properties is not None and not isinstance(properties, dict):
        raise ValueError(f"feature {place}: expected an object of properties, got {describe_value(properties)}")
    record = dict(properties or {})
    if feature.get("id") is not None:
        record["id"] = feature["id"]
    geometry = feature.get("geometry")
    if geometry is not None:
        try:
            record["geometry"] = _geometry(geometry)
        except (TypeError, ValueError, KeyError, IndexError):
            raise ValueError(f"feature {place}: its geometry has no coordinates as GeoJSON writes them") from None
        if geometry["type"] == "Point" and len(geometry["coordinates"]) > 2:
            record.setdefault("altitude", geometry["coordinates"][2])
    return record


def _geometry(geometry: Any) -> Any:
    kind, coordinates = geometry["type"], geometry.get("coordinates")
    if kind == "Point":
        return _point(coordinates)
    if kind == "LineString" and len(coordinates) == 2:
        return Line(_point(coordinates[0]), _point(coordinates[1]))
    if kind == "Polygon" and len(coordinates) == 1:
        ring = [_point(position) for position in coordinates[0]]
        # A GeoJSON ring ends where it began; a polygon here is closed implicitly.
        corners = ring[:-1] if len(ring) > 3 and ring[0] == ring[-1] else ring
        if len(corners) >= 3:
            return Polygon(tuple(corners))
        raise ValueError
    return geometry


def _point(position: Any) -> Point:
    longitude, latitude = position[:2]
    if not all(isinstance(part, int | float) and not isinstance(part, bool) for part in (longitude, latitude)):
        raise ValueError
    point = Point(float(latitude), float(longitude))
    if not (isfinite(point.x) and isfinite(point.y)):
        raise ValueError
    return point
