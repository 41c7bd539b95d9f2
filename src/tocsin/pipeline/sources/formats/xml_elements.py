"""Parses XML as a stream of elements, hardened against hostile input.

It accepts no document type, hence no entities but the five of XML itself; it limits the depth and the bytes of an
element; it fetches nothing. Elements are handed over as they end, and only they are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Final
from xml.parsers import expat

from tocsin.pipeline.sources.reader_types import RECORD_LIMIT_BYTES, BadRecord

MAX_DEPTH: Final = 64
_CHUNK_BYTES: Final = 1 << 16
_SEPARATOR: Final = " "


@dataclass(slots=True)
class Element:
    """`name` and the names of attributes are local names; `space` is the namespace, "" for none."""

    space: str
    name: str
    attributes: dict[tuple[str, str], str]
    line: int
    parts: list[str | Element] = field(default_factory=list)
    size_bytes: int = 0

    @property
    def children(self) -> list[Element]:
        return [part for part in self.parts if isinstance(part, Element)]

    @property
    def text(self) -> str:
        """Its own text, without the text of nested elements."""
        return "".join(part for part in self.parts if isinstance(part, str))

    def all_text(self) -> str:
        """The text of this element and of all nested elements, in order."""
        return "".join(part if isinstance(part, str) else part.all_text() for part in self.parts)

    def attribute(self, name: str) -> str | None:
        return self.attributes.get(("", name))


Wanted = Callable[[str, str, int], bool]


def elements(file: BinaryIO, is_wanted: Wanted, limit_bytes: int = RECORD_LIMIT_BYTES) -> Iterator[Element]:
    """Yields every outermost element for which `wanted(namespace, name, depth)` holds (the root has depth 1). Raises
    BadRecord if the file is not XML, or exceeds a limit.
    """
    reading = _Reading(is_wanted)
    parser = reading.parser
    fed_bytes = 0
    try:
        while chunk := file.read(_CHUNK_BYTES):
            fed_bytes += len(chunk)
            parser.Parse(chunk, False)
            yield from reading.taken()
            # Counts also what expat buffers because it has not seen the end: a tag, or a comment.
            if fed_bytes - min(parser.CurrentByteIndex, reading.begun_at(fed_bytes)) > limit_bytes + _CHUNK_BYTES:
                raise _too_long(parser.CurrentLineNumber, limit_bytes)
        parser.Parse(b"", True)
        yield from reading.taken()
    except expat.ExpatError as error:
        reason = f"is not XML: {expat.errors.messages.get(error.code, str(error))}"
        raise BadRecord(error.lineno, reason, column=error.offset + 1) from None
    except (LookupError, UnicodeError):
        raise BadRecord(1, "is XML in an encoding that is not known here") from None


def _too_long(line: int, limit_bytes: int) -> BadRecord:
    return BadRecord(line, f"an element is longer than {limit_bytes} bytes")


class _Reading:
    def __init__(self, is_wanted: Wanted) -> None:
        self._wanted = is_wanted
        self._open: list[Element] = []  # from the wanted element inwards
        self._depth = 0
        self._began_at = 0
        self._done: list[Element] = []
        self.parser = expat.ParserCreate(namespace_separator=_SEPARATOR)
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self.parser.StartDoctypeDeclHandler = self._document_type

    def taken(self) -> list[Element]:
        done, self._done = self._done, []
        return done

    def begun_at(self, otherwise: int) -> int:
        return self._began_at if self._open else otherwise

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        line = self.parser.CurrentLineNumber
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise BadRecord(line, f"is nested more than {MAX_DEPTH} levels deep")
        space, name = _split(tag)
        if not self._open:
            if not self._wanted(space, name, self._depth):
                return
            self._began_at = self.parser.CurrentByteIndex
        element = Element(space, name, {_split(key): value for key, value in attributes.items()}, line)
        if self._open:
            self._open[-1].parts.append(element)
        self._open.append(element)

    def _end(self, _tag: str) -> None:
        self._depth -= 1
        if self._open:
            element = self._open.pop()
            if not self._open:
                element.size_bytes = self.parser.CurrentByteIndex - self._began_at
                self._done.append(element)

    def _text(self, text: str) -> None:
        if self._open:
            self._open[-1].parts.append(text)

    def _document_type(self, *_: object) -> None:
        raise BadRecord(self.parser.CurrentLineNumber, "has a document type (<!DOCTYPE), which is not taken")


def _split(tag: str) -> tuple[str, str]:
    space, _, name = tag.rpartition(_SEPARATOR)
    return space, name
