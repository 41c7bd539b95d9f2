"""Items and fields of JSON, found by their borders: as many as a parser finds, and where it finds them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.strategies import json_values
from tocsin.rules.model.json_spans import BrokenArrayError, TooManyItemsError, array_items, object_fields


@given(st.lists(json_values()), st.sampled_from([None, 0, 2]), st.booleans())
def test_the_items_of_an_array_are_those_of_the_parser(values: list[Any], indent: int | None, ascii_only: bool) -> None:
    text = b" " + json.dumps(values, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass") + b"x"
    spans = array_items(text, 1, most=len(values))
    assert spans.end == len(text) - 1
    found = [json.loads(text[begin:end].decode("utf-8", "surrogatepass")) for begin, end in spans]
    assert json.dumps(found) == json.dumps(values)


@given(st.dictionaries(st.text(), json_values()), st.sampled_from([None, 1]))
def test_the_fields_of_an_object_are_those_of_the_parser(fields: dict[str, Any], indent: int | None) -> None:
    text = json.dumps(fields, indent=indent).encode()
    found = [
        (json.loads(text[slice(*name)].decode()), json.loads(text[slice(*value)].decode()))
        for name, value in object_fields(text, 0)
    ]
    assert json.dumps(found) == json.dumps([list(field) for field in fields.items()])


def test_more_items_than_wanted_are_told_before_the_rest_is_looked_at() -> None:
    with pytest.raises(TooManyItemsError):
        array_items(b"[1, {}, 3, broken", 0, most=2)


@pytest.mark.parametrize("item", [b"{}", b"1", b'{"a": "b"}', b'{"a": {}}', b"[]"])
@pytest.mark.parametrize("most", [0, 1, 99, 100, 101, 250])
def test_many_small_items_are_counted_exactly(item: bytes, most: int) -> None:
    def text(count: int, end: bytes) -> bytes:
        return b"[" + b" ,".join([item] * count) + end

    assert len(array_items(text(most, b"]"), 0, most=most)) == most
    with pytest.raises(TooManyItemsError):
        array_items(text(most + 1, b"]"), 0, most=most)
    with pytest.raises(TooManyItemsError):
        array_items(text(most + 1, b", broken"), 0, most=most)
    if most:
        with pytest.raises(BrokenArrayError, match="Expecting value"):
            array_items(text(most, b", ]"), 0, most=most)
        with pytest.raises(BrokenArrayError) as caught:
            array_items(text(most, b', "x'), 0, most=most)
        assert (len(caught.value.spans), caught.value.is_inside) == (most, True)


@pytest.mark.parametrize(
    ("text", "at", "is_inside"),
    [
        (b"[", 1, False),
        (b"[1", 2, False),
        (b"[1,", 3, False),
        (b"[1,]", 3, False),
        (b"[1 2]", 3, False),
        (b"[,1]", 1, False),
        (b'[1, "a', 4, True),
        (b'[1, {"a": [', 4, True),
        (b'[1, {"a": "]}', 4, True),
        (b"[}", 1, False),
    ],
)
def test_where_an_array_is_broken_is_told(text: bytes, at: int, is_inside: bool) -> None:
    with pytest.raises(BrokenArrayError) as caught:
        array_items(text, 0, most=10)
    assert (caught.value.at, caught.value.is_inside) == (at, is_inside)


@given(st.text('[]{}",:1a \\\n', max_size=30).map(str.encode))
def test_whatever_the_text_is_spans_lie_in_it_in_their_order(text: bytes) -> None:
    try:
        spans = array_items(b"[" + text, 0, most=30)
    except (BrokenArrayError, TooManyItemsError):
        return
    borders = [border for span in spans for border in span]
    assert borders == sorted(borders)
    assert not borders or borders[-1] < spans.end <= len(text) + 1


def test_an_item_may_have_256_levels() -> None:
    def text(levels: int) -> bytes:
        return b"[1, " + b"[" * levels + b"]" * levels + b"]"

    assert len(array_items(text(256), 0, most=2)) == 2
    with pytest.raises(BrokenArrayError, match="more than 256 levels") as caught:
        array_items(text(257), 0, most=2)
    assert (caught.value.at, len(caught.value.spans), caught.value.is_too_deep) == (4, 1, True)
    with pytest.raises(TooManyItemsError):
        array_items(text(257), 0, most=1)


@pytest.mark.parametrize("inner", [b"[]", b'{"]": "[\\\\\\""}', b"[[{}]]"])
def test_an_item_of_many_brackets_has_the_same_end(inner: bytes) -> None:
    item = b"[" + b", ".join([inner] * 20_000) + b"]"
    text = b"[1, " + item + b", 2]"
    assert [text[begin:end] for begin, end in array_items(text, 0, most=3)] == [b"1", item, b"2"]
    with pytest.raises(BrokenArrayError) as caught:
        array_items(text[: len(item)], 0, most=3)
    assert caught.value.is_inside
    with pytest.raises(BrokenArrayError, match="more than 256 levels"):
        array_items(text.replace(b", 2]", b", [" + b"[" * 300), 0, most=3)
    with pytest.raises(BrokenArrayError, match="more than 256 levels"):
        array_items(b"[" + item[:-1] + b", " + b"[" * 300, 0, most=3)
