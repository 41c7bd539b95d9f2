"""Builds join keys for texts that contain a keyword, match a pattern or have words: hashes of parts of texts.

Spark would test every keyword against every text. A keyword has one key, that of its first characters; a text has the
key of each of its parts that begins a keyword in use. An equality of keys is a condition by which Spark can join; the
exact test follows for the pairs that share a key. How long the part is depends on the keyword, so that long keywords,
which are rare in texts, meet few texts by chance.
"""

from __future__ import annotations

from sqlglot import exp

from tocsin.language.channels.joins.sides import JoinSides, KeyStrategy
from tocsin.language.functions import text_search
from tocsin.language.functions.bounds import like_patterns
from tocsin.language.types.variant import values


def by_text(condition: exp.Expr, sides: JoinSides) -> KeyStrategy | None:
    """Returns the strategy for a text of a record that contains, or is like, what an interest says."""
    return _by_parts(condition, sides) or _by_words(condition, sides)


def _by_parts(condition: exp.Expr, sides: JoinSides) -> KeyStrategy | None:
    like = condition.this if isinstance(condition, exp.Escape) else condition
    if isinstance(like, exp.Like | exp.ILike):
        text: exp.Expr = exp.cast(like.this.copy(), "STRING")
        pattern = like.expression
        if isinstance(like, exp.ILike):
            text, pattern = values.call("lower", text), values.call("lower", pattern)
        keys = text_search.pattern_keys(pattern, like_patterns.escape_of(condition))
    elif isinstance(condition, exp.Anonymous) and str(condition.this).lower() in ("contains", "endswith"):
        text, word = condition.expressions
        keys = text_search.keyword_keys(word)
    else:
        return None
    if not _is_of_interests(text, keys, sides):
        return None
    stored_keys = sides.per_row(sides.right)(keys)
    return KeyStrategy(
        "parts of a text", text_search.part_keys(text, sides.filter_of(sides.right, stored_keys)), stored_keys,
        is_wide=True,
    )  # fmt: skip


def _by_words(condition: exp.Expr, sides: JoinSides) -> KeyStrategy | None:
    if not isinstance(condition, exp.Anonymous) or str(condition.this) != text_search.HAS_WORDS:
        return None
    text, words, any_of = condition.expressions
    if not _is_of_interests(text, words, sides):
        return None
    keys = sides.per_row(sides.right)(text_search.word_keys(words, any_of))
    text_keys = text_search.text_word_keys(text, sides.filter_of(sides.right, keys))
    if any_of == exp.false():
        return KeyStrategy("the words of a text", text_keys, keys, is_wide=True)

    def counts(key: exp.Expr) -> exp.Expr:
        return exp.EQ(this=key, expression=text_search.first_word_key(text, words))

    return KeyStrategy("the words of a text", text_keys, keys, counts, is_wide=True)


def _is_of_interests(text: exp.Expr, wanted: exp.Expr, sides: JoinSides) -> bool:
    """Whether the text belongs to records, and what it is compared with to the interests."""
    return sides.of(text) == sides.left and sides.of(wanted) == sides.right == sides.matches.interests
