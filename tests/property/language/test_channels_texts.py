"""Channels about texts (keywords, patterns, words) against each pair of a text and an interest, in plain Python."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from hypothesis import given
from pyspark.sql import SparkSession

from tests.support.channel_compiler import REPORTS, Case, FakeDatasets, Record, Version, check, shown
from tests.support.channel_worlds import report, seeds, tried
from tocsin.rules.model import types as t
from tocsin.rules.model.types import ArrayType

# Few different characters, so that texts and keywords meet; also of two UTF-16 units, and with a case of their own.
_LETTERS = "aab cAB%_\\.é名😀İß٣½\n"
_PIECES = ("fire", "Fire", "flood warning", "a%b", "a_b", "\\", "", "naïve", "名前", "😀😀", "x" * 40, "ab" * 20)


def _text(rng: Random, length: int = 30) -> str:
    pieces = ["".join(rng.choices(_LETTERS, k=rng.randint(0, length))), rng.choice(_PIECES), rng.choice(_PIECES)]
    rng.shuffle(pieces)
    return "".join(pieces)


def _part(rng: Random, text: str) -> str:
    begin, end = sorted(rng.randint(0, len(text)) for _ in range(2))
    return text[begin:end]


def _texts(world: FakeDatasets) -> list[str]:
    return [record["note"] for record in world.new(REPORTS) if record.get("note") is not None]


def _world(seed: int) -> FakeDatasets:
    rng = Random(seed)
    versions = []
    for i in range(40):
        record: Record = report(rng, i) | {"note": _text(rng), "extra": rng.choice((_text(rng), 12, None, True))}
        if rng.random() < 0.1:
            del record["note"]
        versions.append(Version(record, rng.choice((1, 2))))
    return FakeDatasets({REPORTS.name: versions})


def _keywords(rng: Random, world: FakeDatasets) -> Sequence[Sequence[Any]]:
    some = [_part(rng, text) for text in _texts(world) for _ in range(3)]
    return [(word,) for word in dict.fromkeys((*_PIECES, *some, *(_text(rng, 4) for _ in range(20))))]


def _patterns(rng: Random, world: FakeDatasets) -> Sequence[Sequence[Any]]:
    def pattern(text: str) -> str:
        letters = [rng.choice((letter, letter, letter, letter, "%", "_", "", "\\" + letter)) for letter in text]
        return rng.choice(("%", "", "%", "_")) + "".join(letters) + rng.choice(("%", "", "%"))

    some = [pattern(_part(rng, text)) for text in _texts(world) for _ in range(3)]
    return [
        (pattern_text,)
        for pattern_text in dict.fromkeys((*some, "%", "", "_", "%%", "%_%", "\\", "%\\%%", "fire%", "%!%%"))
    ]


def _phrases(rng: Random, world: FakeDatasets) -> Sequence[Sequence[Any]]:
    some = [" ".join(rng.sample(words, min(len(words), rng.randint(0, 3)))) for words in map(_words, _texts(world))]
    return [(phrase,) for phrase in dict.fromkeys((*some, *(word.upper() for word in some), "", "?", "İ", "ab, fire"))]


def _word_lists(rng: Random, world: FakeDatasets) -> Sequence[Sequence[Any]]:
    phrases = [phrase for (phrase,) in _phrases(rng, world)]
    return [([],), *([rng.choices(phrases, k=rng.randint(1, 3))] for _ in range(80))]


def _words(text: str) -> list[str]:
    """Runs of letters and digits, in lower case character by character."""
    parts = ("Lu", "Ll", "Lt", "Lm", "Lo", "Nd", "No")
    lower = "".join(letter.lower()[0] if unicodedata.category(letter) in parts else " " for letter in text)
    return lower.split()


def _has(text: str, wanted: Sequence[str], mode: Callable[..., bool]) -> bool:
    words = {word for each in wanted for word in _words(each)}
    return bool(words) and mode(word in _words(text) for word in words)


def _like(value: str, pattern: str, escape: str = "\\") -> bool:
    """An escape that escapes nothing makes a pattern that matches nothing."""
    quoted = re.escape(escape)
    if not re.fullmatch(rf"(?:[^{quoted}]|{quoted}[{quoted}%_])*", pattern, re.DOTALL):
        return False
    parts = re.findall(rf"{quoted}[{quoted}%_]|.", pattern, re.DOTALL)
    regex = "".join({"%": ".*", "_": "."}.get(part, re.escape(part[-1])) for part in parts)
    return re.fullmatch(regex, value, re.DOTALL) is not None


def _notes(test: Callable[..., bool]) -> Callable[..., list[Any]]:
    return lambda world, *values: [
        record["id"]
        for record in world.new(REPORTS)
        if record.get("note") is not None and test(record["note"], *values)
    ]


_SELECT = "select value r.id from Reports r where is_new(r) and "
CASES = [
    Case(["k"], _SELECT + "contains(r.note, k)", _keywords, _notes(lambda note, k: k in note)),
    Case(["k"], _SELECT + "ends_with(r.note, k)", _keywords, _notes(lambda note, k: note.endswith(k))),
    Case(["k"], _SELECT + "r.note like k", _patterns, _notes(_like)),
    Case(["k"], _SELECT + "r.note like k escape '!'", _patterns, _notes(lambda note, k: _like(note, k, "!"))),
    Case(["k"], _SELECT + "r.note like concat('%', k, '%')", _keywords,
         _notes(lambda note, k: _like(note, f"%{k}%"))),
    Case(["k"], _SELECT + "ftcontains(r.note, k)", _phrases, _notes(lambda note, k: _has(note, [k], all))),
    Case(["k"], _SELECT + 'ftcontains(r.note, k, {"mode": "any"})', _phrases,
         _notes(lambda note, k: _has(note, [k], any))),
    Case(["k"], _SELECT + 'ftcontains(r.note, k, {"mode": "all"})', _word_lists,
         _notes(lambda note, k: _has(note, k, all)), declared={"k": ArrayType(t.STRING)}),
    Case(["k"], _SELECT + 'ftcontains(r.note, k, {"mode": "any"})', _word_lists,
         _notes(lambda note, k: _has(note, k, any)), declared={"k": ArrayType(t.STRING)}),
    Case(["k"], _SELECT + "ftcontains(r.extra, k)", _phrases,
         lambda world, k: [record["id"] for record in world.new(REPORTS)
                           if isinstance(record.get("extra"), str) and _has(record["extra"], [k], all)]),
    Case(["k"], _SELECT + "(contains(r.note, k) or r.kind = k)", _keywords,
         lambda world, k: [record["id"] for record in world.new(REPORTS)
                           if (record.get("note") is not None and k in record["note"]) or record["kind"] == k]),
    Case(["k", "s"], _SELECT + "contains(r.note, k) and r.severity >= s",
         lambda rng, world: [(word, rng.randint(-3, 12)) for (word,) in _keywords(rng, world)],
         lambda world, k, s: [record["id"] for record in world.new(REPORTS)
                              if record.get("note") is not None and k in record["note"] and record["severity"] >= s]),
    Case(["k"], "select r.id, k from Reports r where contains(r.note, k) and is_new(r)", _keywords,
         lambda world, k: [{"id": record["id"], "k": k} for record in world.new(REPORTS)
                           if record.get("note") is not None and k in record["note"]]),
    Case(["k"], "select r.note, count(*) as n from Reports r where contains(r.note, k) and is_new(r) group by r.note",
         _keywords,
         lambda world, k: [{"note": note, "n": _texts(world).count(note)}
                           for note in dict.fromkeys(_texts(world)) if k in note]),
    Case(["k"], "select value r.id from Reports r where is_new(r)", _keywords,
         lambda world, _k: [record["id"] for record in world.new(REPORTS)], declared={"k": t.STRING}),
]  # fmt: skip


@tried
@given(seed=seeds)
def test_texts_match_the_keywords_patterns_and_words_that_they_match_alone(spark: SparkSession, seed: int) -> None:
    made = _world(seed)
    with shown(spark, made):
        for case in CASES:
            check(spark, case, made, seed)
