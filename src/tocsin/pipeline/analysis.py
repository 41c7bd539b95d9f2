"""Asks Spark's analyser for the type of an expression.

Spark's analyser knows all of Spark's functions, and answers without running anything. The translator therefore asks it,
and has no second description of what they return.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tocsin.language.types.type_probe import map_of
from tocsin.language.types.typed_sql import FunctionError
from tocsin.pipeline.plan_check import analyse_query
from tocsin.rules.model import types as t
from tocsin.rules.model.types import ArrayType, Field, ObjectType, Primitive, Type
from tocsin.wire.errors import StatementError

_TYPES: Final[dict[str, Type]] = {
    "boolean": t.BOOLEAN, "byte": t.TINYINT, "short": t.SMALLINT, "integer": t.INTEGER, "long": t.BIGINT,
    "float": t.FLOAT, "double": t.DOUBLE, "string": t.STRING, "date": t.DATE, "timestamp": t.DATETIME, "variant": t.ANY,
    "void": Primitive("void"),
}  # fmt: skip
# A file URL, or a path that a Java exception names.
_LONGEST_MESSAGE: Final = 2_000
_PATH: Final = re.compile(r"(?:file:|(?<=Exception: ))/[^\s,\])\"';]*")
_POINT: Final = [("x", t.DOUBLE), ("y", t.DOUBLE)]


# Errors of Spark that statements of this language may cause, in its own words, by their conditions.
_IN_OUR_WORDS: Final[dict[str, str]] = {
    "ARITHMETIC_OVERFLOW": "a number is too large: a bigint has 64 bits; compute with double(x), or try_add(a, b) and "
    "the like, which give NULL",
    "BINARY_ARITHMETIC_OVERFLOW": "a number is too large for its type; compute with bigint(x) or double(x)",
    "CAST_OVERFLOW": "a number does not fit the type that it is converted to",
    "DIVIDE_BY_ZERO": "division by zero; try_divide(a, b) gives NULL",
    "REMAINDER_BY_ZERO": "division by zero; try_mod(a, b) gives NULL",
    "INVALID_ARRAY_INDEX_IN_ELEMENT_AT": "the array has no element at this place; try_element_at gives NULL",
    "INVALID_INDEX_OF_ZERO": "element_at counts from 1; a[0] is the first element",
    "CANNOT_PARSE_TIMESTAMP": "the text does not match the pattern",
    "CANNOT_PARSE_TIME": "the text does not match the pattern",
    "INCONSISTENT_BEHAVIOR_CROSS_VERSION": "the text does not match the pattern, or the pattern is none, such as "
    '"yyyy-MM-dd HH:mm:ss"',
    "INVALID_DATETIME_PATTERN": 'this is no pattern, such as "yyyy-MM-dd HH:mm:ss"',
}
_OUR_NAMES: Final = {
    "BIGINT": "bigint", "INT": "integer", "SMALLINT": "smallint", "TINYINT": "tinyint", "DOUBLE": "double",
    "FLOAT": "float", "STRING": "string", "BOOLEAN": "boolean", "DATE": "date", "TIMESTAMP": "datetime",
    "VARIANT": "any", "VOID": "null", "BINARY": "binary",
}  # fmt: skip
_CONDITION: Final = re.compile(r"^\[([A-Z_0-9]+)[A-Z_0-9.]*\]\s*")
_INVALID_CAST: Final = re.compile(r"The value (.+) of the type \"\w+\" cannot be cast to \"(\w+)\"")
_ARGUMENT: Final = re.compile(
    r"(?:Cannot resolve \".*\" due to data type mismatch: )?The (\w+) parameter requires the (.+) type, however \".*\" "
    r"has the type \"([^\"]+)\""
)
_COUNT: Final = re.compile(
    r"The `(\w+)` requires (?:\[([\d, ]+)\]|(\d+)|(> ?\d+)) parameters but the actual number is (\d+)"
)
_NO_ORDER: Final = re.compile(r"The `([^`]+)` does not support ordering on type \"")


def _our_type(name: str) -> str:
    return _OUR_NAMES.get(name.strip('"'), name.strip('"').lower())


def _in_our_words(message: str) -> str | None:
    """Returns the message for an error of which Spark's text names its own types, settings or functions."""
    condition = _CONDITION.match(message)
    text = message[condition.end() :] if condition is not None else message
    if (cast := _INVALID_CAST.search(text)) is not None:
        return f"{cast[1]} is no {_our_type(cast[2])}; try_cast gives NULL for it"
    if (argument := _ARGUMENT.search(text)) is not None:
        wanted = " or ".join(_our_type(name) for name in re.findall(r'"([^"]+)"', argument[2]))
        return f"the {argument[1]} argument must be {wanted}, not {_our_type(argument[3])}"
    if (count := _COUNT.search(text)) is not None:
        expected = (
            count[2].replace(", ", " or ") if count[2] else count[3] or f"more than {(count[4] or '').lstrip('> ')}"
        )
        return f"{count[1]} takes {expected} argument{'' if expected == '1' else 's'}, got {count[5]}"
    if (operation := _NO_ORDER.search(text)) is not None:
        return f"{operation[1]} needs values that have an order"
    return _IN_OUR_WORDS.get(condition[1]) if condition is not None else None


class SparkTypeAnalyser:
    """Caches the answers: a type does not change, and each question takes Spark some milliseconds."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._ask = lru_cache(maxsize=20_000)(self._asked)

    def columns(self, sql: str) -> list[tuple[str, Type]]:
        answer = self._ask(sql)
        if isinstance(answer, str):
            raise FunctionError(answer)
        return answer

    def _asked(self, sql: str) -> list[tuple[str, Type]] | str:
        try:
            schema = analyse_query(self._spark, sql).schema.jsonValue()
        except PySparkException as error:
            return reason(str(error))
        except StatementError as error:
            return error.message
        return [(field["name"], _type(field["type"])) for field in schema["fields"]]


def reason(message: str) -> str:
    """Spark's message without its codes, plans and positions in generated SQL."""
    line = message.split("\n", maxsplit=1)[0]
    # The patterns below take quadratic time, and Spark's messages quote values of any length.
    text = line if len(line) <= _LONGEST_MESSAGE else f"{line[:_LONGEST_MESSAGE]}…"
    if (ours := _in_our_words(text)) is not None:
        return without_paths(ours)
    text = re.sub(r"^\[([A-Z_0-9.]+)\]\s*", "", text)
    routine = re.match(r"Cannot resolve routine `(\w+)`", text)
    if routine is not None:
        return f"unknown function {routine[1].lower()}"
    # Our aliases end with a generated number, which no person wrote.
    text = re.sub(r"`?([A-Za-z0-9]+)_\d+`?\.`(\w+)`", r"\1.\2", text)
    text = re.sub(r" Please, refer to '[^']*' for a fix\.", "", text)
    text = re.sub(r"\s*SQLSTATE: \w+.*$", "", text)
    text = re.sub(r";?\s*line \d+,? pos \d+.*$", "", text)
    text = re.sub(r'"?CAST\(NULL AS ([^()"]+(?:\([\d,]+\))?)\)"?', r"a value of type \1", text)
    text = re.sub(r"Cannot resolve \"[^\"]*\" due to data type mismatch: ", "", text)
    text = re.sub(r"If necessary set .*$", "", text)
    return without_paths(text.strip()) or "Spark cannot run this"


def without_paths(text: str) -> str:
    """Replaces paths by file names: users must not learn the machine's folders."""
    return _PATH.sub(lambda found: found[0].rpartition("/")[2] or "…", text)


def _type(found: Any) -> Type:
    if isinstance(found, str):
        return _TYPES.get(found, Primitive(found))
    if found["type"] == "array":
        return ArrayType(_type(found["elementType"]))
    if found["type"] == "struct":
        fields = tuple(Field(field["name"], _type(field["type"])) for field in found["fields"])
        return ObjectType(fields, open=False)
    if found["type"] == "map":
        return map_of(_type(found["keyType"]), _type(found["valueType"]))
    return Primitive(str(found["type"]))
