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
