"""Registers our own regular expression functions in Spark: they limit their steps and stop when their task is killed.

Java's matcher does neither, and some expressions would keep it busy practically forever. Spark's own functions are
therefore never run: the language calls these (`language/functions/regular_expressions.py`). They are compiled in the
JVM, by the compiler that Spark uses for generated code, and reach its executors as a jar.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from tocsin.language.functions.regular_expressions import (
    EXTRACT,
    EXTRACT_ALL,
    LIKE,
    POSITION,
    REPLACE,
    SPLIT,
)

STEPS: Final = 50_000_000
"""How many characters a match of one value may examine, which takes a second at most."""

_PROBLEM: Final = "tocsin regex: "  # the beginning of these functions' error messages, which have two lines
_SOURCE: Final = Path(__file__).with_suffix(".java")
_FUNCTIONS: Final = {
    LIKE: ("RegexLike", "BOOLEAN"),
    EXTRACT: ("RegexExtract", "STRING"),
    EXTRACT_ALL: ("RegexExtractAll", "ARRAY<STRING>"),
    POSITION: ("RegexPosition", "INT"),
    REPLACE: ("RegexReplace", "STRING"),
    SPLIT: ("RegexSplit", "ARRAY<STRING>"),
}


def register_regex_functions(spark: SparkSession, folder: Path, *, steps: int = STEPS) -> None:
    """Registers the functions in the session. Their jar is written to the folder, from where executors fetch it."""
    jvm: Any = spark._jvm
    session: Any = spark._jsparkSession
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    source = _SOURCE.read_text(encoding="utf-8")
    compiler.cook(source.replace("@STEPS@", str(steps)).replace("@SHOWN@", f"{steps:,}"))
    jar = folder / "tocsin-functions.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        for name, code in dict(compiler.getBytecodes()).items():
            archive.writestr(f"{name.replace('.', '/')}.class", bytes(code))
    spark.sparkContext._jsc.addJar(str(jar))
    loader = compiler.getClassLoader()
    for name, (kind, result) in _FUNCTIONS.items():
        function = loader.loadClass(f"tocsin.{kind}").getConstructors()[0].newInstance(_none(spark))
        session.udf().register(name, function, jvm.org.apache.spark.sql.types.DataType.fromDDL(result))


def regex_problem(said: str) -> tuple[str, str] | None:
    """The error of one of these functions and its remedy; None if the message comes from elsewhere."""
    if not said.startswith(_PROBLEM):
        return None
    message, _, hint = said.removeprefix(_PROBLEM).partition("\n")
    return message, hint


def _none(spark: SparkSession) -> Any:
    gateway: Any = spark.sparkContext._gateway
    return gateway.new_array(gateway.jvm.java.lang.Object, 0)
