"""Searches texts for keywords and words: `ftcontains`, and the keys by which channels find texts.

Our Java functions cut texts into parts and words (`pipeline/text_keys.java`), the same for queries and for joins. A
part of a text has a key, a 64-bit hash. A text contains a keyword only if it has the keyword's key, so that a join by
keys finds the pairs that are worth an exact test. A text has very many parts. A filter of the keys in use leaves only
those that some keyword has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from sqlglot import exp

from tocsin.language.syntax import nodes
from tocsin.language.types.typed_sql import FunctionError, TypedSql, build, string
from tocsin.language.types.variant import values
from tocsin.rules.model import types as t
from tocsin.rules.model.types import ArrayType, MultisetType, Type

FTCONTAINS: Final = "ftcontains"
_MODES: Final = ("all", "any")
_USAGE: Final = 'ftcontains takes a text, words and an object such as {"mode": "any"}'

_NoteUse = Callable[[TypedSql, Type], None]

KEY_BITS: Final = "tocsin_key_bits"
KEYWORD_KEY: Final = "tocsin_keyword_key"
PATTERN_KEY: Final = "tocsin_pattern_key"
PART_KEYS: Final = "tocsin_part_keys"
HAS_WORDS: Final = "tocsin_has_words"
WORD_KEYS: Final = "tocsin_word_keys"
TEXT_WORD_KEYS: Final = "tocsin_text_word_keys"
FIRST_WORD_KEY: Final = "tocsin_first_word_key"
NAMES: Final = frozenset(
    (KEY_BITS, KEYWORD_KEY, PATTERN_KEY, PART_KEYS, HAS_WORDS, WORD_KEYS, TEXT_WORD_KEYS, FIRST_WORD_KEY)
)
"""Functions that only our own templates call."""

FILTER_BITS: Final = 22
"""A filter has two to the power of this many bits. With 100,000 keys it lets pass one of 500 other keys."""


# ---------------------------------------------------------------- ftcontains


def find_words(arguments: Sequence[TypedSql], options: exp.Expr | None, note_use: _NoteUse) -> TypedSql:
    """Translates `ftcontains(text, words[, {"mode": "any" | "all"}])`. NULL if the arguments are no texts.

    A word is a run of letters and digits; upper and lower case do not matter. A text of several words counts as its
    words. No words are found nowhere.
    """
    if len(arguments) != 2:
        raise FunctionError(_USAGE)
    for argument in arguments:
        if argument.type == t.ANY:
            note_use(argument, t.STRING)
    text, words = _text(arguments[0]), _words(arguments[1])
    if text is None or words is None:
        return TypedSql(values.null(t.BOOLEAN), t.BOOLEAN)
    return TypedSql(_has_words(text, words, any_of=_mode(options) == "any"), t.BOOLEAN)


def _mode(options: exp.Expr | None) -> str:
    """Reads the options. The default is `all`."""
    if options is None:
        return "all"
    mode = "all"
    for member in options.expressions if isinstance(options, nodes.ObjectOf) else (options,):
        is_mode = isinstance(member, nodes.FieldOf) and member.this.name.lower() == "mode"
        value = member.expression if is_mode else None
        if not isinstance(value, exp.Literal) or not value.is_string or value.name.lower() not in _MODES:
            raise FunctionError(f'{_USAGE}; the mode is "any" or "all"')
        mode = value.name.lower()
    return mode


def _text(value: TypedSql) -> exp.Expr | None:
    if value.type == t.ANY:
        return values.exactly(value.sql, t.STRING)
    return value.sql if value.type == t.STRING else None


def _words(value: TypedSql) -> exp.Expr | None:
    """Returns the words as an array of texts."""
    if value.type == t.STRING:
        return values.call("array", value.sql)
    if value.type == t.ANY:
        text = values.exactly(value.sql, t.STRING)
        return build("if(_s IS NULL, _a, array(_s))", _s=text, _a=values.as_type(value.sql, ArrayType(t.STRING)))
    if isinstance(value.type, ArrayType | MultisetType) and value.type.item == t.STRING:
        return value.sql
    if isinstance(value.type, ArrayType | MultisetType) and value.type.item == t.ANY:
        text = values.exactly(exp.column("__w"), t.STRING)
        return build("transform(_a, __w -> _s)", _a=value.sql, _s=text)
    return None


# ---------------------------------------------------------------- keys


def keyword_keys(word: exp.Expr) -> exp.Expr:
    """Returns the key of a text that another text is to contain, in an array."""
    return values.call("array", values.call(KEYWORD_KEY, word))


def pattern_keys(pattern: exp.Expr, escape: str) -> exp.Expr:
    """Returns the key of a pattern of LIKE, in an array."""
    return values.call("array", values.call(PATTERN_KEY, pattern, string(escape)))


def part_keys(text: exp.Expr, key_filter: exp.Expr) -> exp.Expr:
    """Returns the keys of a text's parts that the filter has, each once."""
    return values.call(PART_KEYS, text, key_filter)


def _has_words(text: exp.Expr, words: exp.Expr, *, any_of: bool) -> exp.Expr:
    """Returns whether a text has all of the words of an array of texts, or any of them."""
    return values.call(HAS_WORDS, text, words, exp.true() if any_of else exp.false())


def word_keys(words: exp.Expr, any_of: exp.Expr) -> exp.Expr:
    """Returns the keys by which a text that has the words is found."""
    return values.call(WORD_KEYS, words, any_of)


def text_word_keys(text: exp.Expr, key_filter: exp.Expr) -> exp.Expr:
    """Returns the keys of a text's words that the filter has, each once."""
    return values.call(TEXT_WORD_KEYS, text, key_filter)


def first_word_key(text: exp.Expr, words: exp.Expr) -> exp.Expr:
    """Returns the key of the first word of a text that is one of the words."""
    return values.call(FIRST_WORD_KEY, text, words)


def key_bits(keys: exp.Expr) -> exp.Expr:
    """Returns the bits of the filter that keys set."""
    return values.call(KEY_BITS, keys)
