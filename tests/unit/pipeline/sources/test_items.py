"""The items of polled addresses: their fields, their identities, and what is refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.pipeline.sources.items import items
from tocsin.pipeline.sources.pieces import BodyLimits
from tocsin.rules.model.json_form import reader
from tocsin.rules.model.types import DATETIME, POINT, Field, ObjectType
from tocsin.rules.model.values import Line, Point, Polygon
from tocsin.wire.errors import InputError, LimitError


def records(body: str | bytes, form: str) -> list[dict[str, Any]]:
    return [record for _, record in items(body if isinstance(body, bytes) else body.encode(), form)]


def identities(body: str, form: str = "json") -> list[str]:
    return [identity for identity, _ in items(body.encode(), form)]


# ---------------------------------------------------------------- JSON


@pytest.mark.parametrize(
    "body",
    ['[{"id": 1}, {"id": 2}]', '{"id": 1}\n{"id": 2}\n', '\ufeff{"id": 1} {\n"id": 2}', '\ufeff [{"id":1},{"id":2}]'],
)
def test_json_is_an_array_or_objects_one_after_the_other(body: str) -> None:
    assert records(body, "json") == [{"id": 1}, {"id": 2}]


def test_an_item_is_known_by_its_id_its_guid_or_its_link() -> None:
    assert identities('[{"id": 7}, {"id": "7"}, {"guid": "g", "link": "l"}, {"link": "l"}]') == [
        "id 7",
        'id "7"',
        'guid "g"',
        'link "l"',
    ]


def test_an_item_without_a_name_is_known_by_what_it_holds_in_any_order() -> None:
    one, other, third = identities(
        '[{"a": 1, "b": {"c": 1, "d": 2}}, {"b": {"d": 2, "c": 1}, "a": 1}, {"a": 2, "id": null}]'
    )
    assert one == other != third
    assert one.startswith("sha256 ")


def test_identities_are_short_whatever_the_item_says() -> None:
    (one,) = identities(json.dumps({"id": "x" * 10_000}))
    (other,) = identities(json.dumps({"id": "x" * 9_999}))
    assert one != other
    assert len(one) < 100


@pytest.mark.parametrize(
    ("body", "form", "said"),
    [
        ('[{"id": 1}, 7]', "json", "item 1: expected an object, got the number 7"),
        ('[{"id": 1},\n tru]', "json", "line 2, column 2: the answer cannot be read: is not JSON"),
        ('{"id": 1}\n{"id"', "json", "line 2"),
        (b"\xff", "json", "is not"),
        ("[" * 100_000, "json", "nested more than 256 levels deep"),
        ("{}", "geojson", "expected a GeoJSON Feature or FeatureCollection, got an object"),
        ('{"type": "Point"}', "geojson", "got a Point"),
        ('{"type": "FeatureCollection"}', "geojson", "expected an array of features"),
        ('{"type": "FeatureCollection", "features": [1]}', "geojson", "feature 0: expected an object"),
        ('{"type": "Feature", "properties": []}', "geojson", "expected an object of properties"),
        ('{"type": "Feature", "geometry": {"type": "Point", "coordinates": [1]}}', "geojson", "no coordinates"),
        ('{"type": "Feature", "geometry": {"type": "Point", "coordinates": [1, "x"]}}', "geojson", "no coordinates"),
        ('{"type": "Feature", "geometry": 5}', "geojson", "no coordinates"),
        ("<html/>", "rss", "expected RSS or Atom, got XML whose root is html"),
        ("<rss><channel>\n<item></channel></rss>", "rss", "line 2, column 9: the answer cannot be read: is not XML"),
        ("", "rss", "is not XML: no element found"),
        ('<!DOCTYPE rss [<!ENTITY a "b">]><rss/>', "rss", "has a document type"),
        ("<rss>" + "<a>" * 100, "rss", "nested more than 64"),
        ("{}", "avro", "there is no format 'avro'"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_place(body: str | bytes, form: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        records(body, form)
    assert said in str(caught.value)


def test_too_many_items_are_refused() -> None:
    with pytest.raises(LimitError, match="more than 2 items"):
        list(items(b"[{},{},{}]", "json", BodyLimits(records=2)))


# ---------------------------------------------------------------- GeoJSON


def feature(geometry: Any, **more: Any) -> dict[str, Any]:
    return {"type": "Feature", "properties": {"mag": 4.5}, "geometry": geometry, **more}


def test_longitude_and_latitude_change_places() -> None:
    found = feature({"type": "Point", "coordinates": [-117.84, 33.64, 12.5]}, id="us7000")
    body = json.dumps({"type": "FeatureCollection", "features": [found]})
    assert list(items(body.encode(), "geojson")) == [
        ('id "us7000"', {"mag": 4.5, "id": "us7000", "geometry": Point(33.64, -117.84), "altitude": 12.5})
    ]
    typed = reader(ObjectType((Field("geometry", POINT),)))
    assert typed(records(body, "geojson")[0])["geometry"] == Point(33.64, -117.84)


@pytest.mark.parametrize(
    ("geometry", "value"),
    [
        ({"type": "LineString", "coordinates": [[1, 2], [3, 4]]}, Line(Point(2.0, 1.0), Point(4.0, 3.0))),
        (
            {"type": "Polygon", "coordinates": [[[0, 1], [2, 3], [4, 0], [0, 1]]]},
            Polygon((Point(1.0, 0.0), Point(3.0, 2.0), Point(0.0, 4.0))),
        ),
        ({"type": "MultiPoint", "coordinates": [[1, 2]]}, {"type": "MultiPoint", "coordinates": [[1, 2]]}),
    ],
)
def test_geometries_become_the_values_that_fit_them_or_stay_objects(geometry: Any, value: Any) -> None:
    assert records(json.dumps(feature(geometry)), "geojson") == [{"mag": 4.5, "geometry": value}]


def test_a_feature_without_a_place_is_its_properties() -> None:
    assert records(json.dumps(feature(None)), "geojson") == [{"mag": 4.5}]


# ---------------------------------------------------------------- RSS and Atom

RSS = """<?xml version="1.0"?>
<rss version="2.0" xmlns:media="http://search.yahoo.com/mrss/" xmlns:atom="http://www.w3.org/2005/Atom"><channel>
  <title>News</title><link>https://example.org</link>
  <item>
    <title> Flood &amp; rain </title><media:title>other</media:title><link>https://example.org/1</link>
    <atom:link href="https://example.org/feed"/>
    <description><![CDATA[<b>wet</b>]]></description><pubDate>Sun, 15 Nov 2026 08:30:00 +0100</pubDate>
    <guid isPermaLink="false">g-1</guid><category>flood</category><category domain="d">road</category>
  </item>
  <item><title>Second</title><link>https://example.org/2</link><pubDate>yesterday</pubDate></item>
</channel></rss>"""

ATOM = """<feed xmlns="http://www.w3.org/2005/Atom"><title>News</title><id>urn:feed</id>
  <entry><title>One</title><id>urn:1</id><link rel="self" href="s"/><link href="https://example.org/1"/>
    <updated>2026-11-15T09:00:00Z</updated><published>2026-11-15T08:30:00+01:00</published>
    <category term="flood"/>
    <content type="xhtml"><div xmlns="http://www.w3.org/1999/xhtml">so <b>wet</b> here</div></content>
  </entry></feed>"""

RDF = """<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns="http://purl.org/rss/1.0/"
  xmlns:dc="http://purl.org/dc/elements/1.1/"><channel><title>News</title></channel>
  <item><title>Old</title><link>https://example.org/3</link><dc:date>2026-11-15T08:30:00Z</dc:date></item></rdf:RDF>"""


def test_rss_items_have_the_fields_of_their_own_vocabulary() -> None:
    assert list(items(RSS.encode(), "rss")) == [
        (
            'guid "g-1"',
            {
                "title": "Flood & rain",
                "link": "https://example.org/1",
                "description": "<b>wet</b>",
                "pubDate": datetime(2026, 11, 15, 7, 30, tzinfo=UTC),
                "guid": "g-1",
                "categories": ["flood", "road"],
            },
        ),
        ('link "https://example.org/2"', {"title": "Second", "link": "https://example.org/2", "pubDate": "yesterday"}),
    ]


def test_atom_entries_take_the_names_of_rss() -> None:
    assert records(ATOM, "rss") == [
        {
            "title": "One",
            "link": "https://example.org/1",
            "description": "so wet here",
            "pubDate": datetime(2026, 11, 15, 7, 30, tzinfo=UTC),
            "guid": "urn:1",
            "categories": ["flood"],
        }
    ]
    typed = reader(ObjectType((Field("pubDate", DATETIME),)))
    assert typed(records(ATOM, "rss")[0])["pubDate"] == datetime(2026, 11, 15, 7, 30, tzinfo=UTC)


def test_rss_1_is_read_too() -> None:
    moment = datetime(2026, 11, 15, 8, 30, tzinfo=UTC)
    assert records(RDF, "rss") == [{"title": "Old", "link": "https://example.org/3", "pubDate": moment}]


@given(st.text(st.characters(exclude_characters="<&", exclude_categories=["Cs", "Cc"])))
def test_no_date_breaks_an_item(text: str) -> None:
    (record,) = records(f"<rss><item><pubDate>{text}</pubDate></item></rss>", "rss")
    assert isinstance(record.get("pubDate", ""), str | datetime)
