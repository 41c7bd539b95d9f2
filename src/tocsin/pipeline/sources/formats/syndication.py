"""Reads RSS 2.0 (and 1.0) and Atom: each item or entry becomes a record.

    title · link · description · pubDate (a datetime, in UTC) · guid · categories (an array, where there are any)

Atom's `summary` (else `content`), `published` (else `updated`), `id` and the term of a category get these names. An
absent element is MISSING; an unreadable date stays text. Elements of other vocabularies are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from io import BytesIO
from typing import Any, Final

from tocsin.pipeline.sources.formats.xml_elements import Element, elements
from tocsin.rules.model.values import parse_datetime

_ATOM: Final = "http://www.w3.org/2005/Atom"
_RSS_1: Final = "http://purl.org/rss/1.0/"
_DUBLIN_CORE: Final = "http://purl.org/dc/elements/1.1/"
_ROOTS: Final = (("", "rss"), ("http://www.w3.org/1999/02/22-rdf-syntax-ns#", "RDF"), (_ATOM, "feed"))


def records(body: bytes) -> Iterator[dict[str, Any]]:
    """The items in order. Raises BadRecord if the body is not XML, and ValueError if it is other XML."""
    is_feed = False

    def wanted(space: str, name: str, depth: int) -> bool:
        nonlocal is_feed
        if depth == 1:
            is_feed = (space, name) in _ROOTS
            if not is_feed:
                raise ValueError(f"expected RSS or Atom, got XML whose root is {name}")
        return (space, name) in (("", "item"), (_RSS_1, "item"), (_ATOM, "entry"))

    for element in elements(BytesIO(body), wanted):
        yield _entry(element) if element.space == _ATOM else _item(element)


def _item(item: Element) -> dict[str, Any]:
    own = [child for child in item.children if child.space == item.space]
    record: dict[str, Any] = {name: text for name in ("title", "link", "description") if (text := _text(own, name))}
    published = _text(own, "pubDate") or _text(
        [child for child in item.children if child.space == _DUBLIN_CORE], "date"
    )
    if published:
        record["pubDate"] = _moment(published)
    if guid := _text(own, "guid"):
        record["guid"] = guid
    return record | _categories(child.text.strip() for child in own if child.name == "category")


def _entry(entry: Element) -> dict[str, Any]:
    own = [child for child in entry.children if child.space == _ATOM]
    record: dict[str, Any] = {}
    if title := _text(own, "title"):
        record["title"] = title
    links = [child for child in own if child.name == "link" and child.attribute("href")]
    link = next((candidate for candidate in links if (candidate.attribute("rel") or "alternate") == "alternate"), None)
    if link is not None or links:
        record["link"] = (link or links[0]).attribute("href")
    if description := _text(own, "summary") or _text(own, "content"):
        record["description"] = description
    if published := _text(own, "published") or _text(own, "updated"):
        record["pubDate"] = _moment(published)
    if identity := _text(own, "id"):
        record["guid"] = identity
    return record | _categories((child.attribute("term") or "").strip() for child in own if child.name == "category")


def _text(children: list[Element], name: str) -> str:
    return next((child.all_text().strip() for child in children if child.name == name), "")


def _categories(found: Iterator[str]) -> dict[str, list[str]]:
    categories = [category for category in found if category]
    return {"categories": categories} if categories else {}


def _moment(text: str) -> datetime | str:
    try:
        return parse_datetime(text)  # the format of Atom, which many RSS feeds use too
    except ValueError:
        pass
    try:
        moment = parsedate_to_datetime(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, TypeError, IndexError, OverflowError):
        return text
