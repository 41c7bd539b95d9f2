"""Registers our own Java functions in Spark, which the language calls instead of Spark's (`bounds/bounded_calls.py`).

They limit their steps and the size of their results, and stop when their task is killed. Spark's own functions do
neither: some regular expressions would keep Java's matcher busy practically forever. The functions are compiled in the
JVM, by the compiler that Spark uses for generated code, and reach its executors as a jar.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from tocsin.language.functions import text_search
from tocsin.language.functions.bounds import bounded_calls, call_limits, regular_expressions
from tocsin.pipeline.channels.record_payloads import FIND_RECORD

BOUNDED_VALUES: Final = "bounded_values.java"
# The functions of each source: name in SQL, class, type of the result. A source may use classes of those before it.
FUNCTIONS: Final[Mapping[str, Mapping[str, tuple[str, str | None]]]] = {
    "regular_expressions.java": {
        regular_expressions.LIKE: ("RegexLike", "BOOLEAN"),
        regular_expressions.EXTRACT: ("RegexExtract", "STRING"),
        regular_expressions.EXTRACT_ALL: ("RegexExtractAll", "ARRAY<STRING>"),
        regular_expressions.POSITION: ("RegexPosition", "INT"),
        regular_expressions.REPLACE: ("RegexReplace", "STRING"),
        regular_expressions.SPLIT: ("RegexSplit", "ARRAY<STRING>"),
    },
    BOUNDED_VALUES: {
        bounded_calls.FORMAT: ("BoundedFormat", "STRING"),
        bounded_calls.ITEMS: ("BoundedItems", "INT"),
        bounded_calls.LETTERS: ("BoundedLetters", "INT"),
        bounded_calls.LEVENSHTEIN: ("BoundedLevenshtein", "INT"),
        bounded_calls.REPEAT: ("BoundedRepeat", "STRING"),
        bounded_calls.SEQUENCE: ("SequenceFits", "BOOLEAN"),
        bounded_calls.STOPPABLE: ("StoppableRow", "BOOLEAN"),
    },
    "text_keys.java": {
        text_search.KEY_BITS: ("KeyBits", "ARRAY<BIGINT>"),
        text_search.KEYWORD_KEY: ("KeywordKey", "BIGINT"),
        text_search.PATTERN_KEY: ("PatternKey", "BIGINT"),
        text_search.PART_KEYS: ("PartKeys", "ARRAY<BIGINT>"),
        text_search.HAS_WORDS: ("HasWords", "BOOLEAN"),
        text_search.WORD_KEYS: ("WordKeys", "ARRAY<BIGINT>"),
        text_search.TEXT_WORD_KEYS: ("TextWordKeys", "ARRAY<BIGINT>"),
        text_search.FIRST_WORD_KEY: ("FirstWordKey", "BIGINT"),
    },
    "channels/record_payloads.java": {FIND_RECORD: ("FindRecord", None)},
}
_PROBLEMS: Final = ("tocsin regex: ", "tocsin value: ")  # begin the functions' error messages, which have two lines
_LIMITS: Final = {
    "LETTERS": call_limits.LETTERS,
    "ITEMS": call_limits.ITEMS,
    # Characters that a match of one value may examine, or pairs that levenshtein may compare: at most a second.
    "STEPS": 50_000_000,
    "FILTER_SHIFT": 64 - text_search.FILTER_BITS,
}


def java_source(file: str) -> str:
    source = (Path(__file__).parent / file).read_text(encoding="utf-8")
    for name, value in _LIMITS.items():
        source = source.replace(f"@{name}@", str(value)).replace(f"@{name}_SHOWN@", f"{value:,}")
    return source


def register_java_functions(spark: SparkSession, folder: Path) -> None:
    """Registers the functions in the session. Their jar is written to the folder, from where executors fetch it."""
    jvm: Any = spark._jvm
    session: Any = spark._jsparkSession
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    jar = folder / "tocsin-functions.jar"
    made: list[tuple[Any, ...]] = []
    with zipfile.ZipFile(jar, "w") as archive:
        for file, functions in FUNCTIONS.items():
            compiler = jvm.org.codehaus.janino.SimpleCompiler()
            compiler.setParentClassLoader(loader)
            compiler.cook(java_source(file))
            loader = compiler.getClassLoader()
            for name, code in dict(compiler.getBytecodes()).items():
                archive.writestr(f"{name.replace('.', '/')}.class", bytes(code))
            for name, (kind, result) in functions.items():
                function = loader.loadClass(f"tocsin.{kind}").getConstructors()[0].newInstance(_none(spark))
                if result is None:  # a stateful object, which declares its function itself
                    made.append((name, function.nondeterministic()))
                else:
                    made.append((name, function, jvm.org.apache.spark.sql.types.DataType.fromDDL(result)))
    spark.sparkContext._jsc.addJar(str(jar))
    for arguments in made:
        session.udf().register(*arguments)


def function_problem(spark_message: str) -> tuple[str, str] | None:
    """The error of one of these functions and its remedy; None if the message comes from elsewhere."""
    for problem in _PROBLEMS:
        if spark_message.startswith(problem):
            message, _, hint = spark_message.removeprefix(problem).partition("\n")
            return message, hint
    return None


def _none(spark: SparkSession) -> Any:
    gateway: Any = spark.sparkContext._gateway
    return gateway.new_array(gateway.jvm.java.lang.Object, 0)
