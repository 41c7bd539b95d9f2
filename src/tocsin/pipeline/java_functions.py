"""Registers our own Java functions in Spark, which the language calls instead of Spark's (`bounds/bounded_calls.py`).

They are compiled in the JVM, by the compiler that Spark uses for generated code, and reach its executors as a jar.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from tocsin.pipeline import bounded_values, regular_expressions
from tocsin.pipeline.channels import record_payloads

_SOURCES: Final = (regular_expressions, bounded_values)  # the second uses a class of the first


def register_java_functions(spark: SparkSession, folder: Path) -> None:
    """Registers the functions in the session. Their jar is written to the folder, from where executors fetch it."""
    jvm: Any = spark._jvm
    session: Any = spark._jsparkSession
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    jar = folder / "tocsin-functions.jar"
    made: list[tuple[Any, ...]] = []
    with zipfile.ZipFile(jar, "w") as archive:
        for source in (*_SOURCES, record_payloads):
            compiler = jvm.org.codehaus.janino.SimpleCompiler()
            compiler.setParentClassLoader(loader)
            compiler.cook(source.java_source())
            loader = compiler.getClassLoader()
            for name, code in dict(compiler.getBytecodes()).items():
                archive.writestr(f"{name.replace('.', '/')}.class", bytes(code))
            for name, (kind, result) in source.FUNCTIONS.items():
                function = loader.loadClass(f"tocsin.{kind}").getConstructors()[0].newInstance(_none(spark))
                if result is None:  # a stateful object, which declares its function itself
                    made.append((name, function.nondeterministic()))
                else:
                    made.append((name, function, jvm.org.apache.spark.sql.types.DataType.fromDDL(result)))
    spark.sparkContext._jsc.addJar(str(jar))
    for arguments in made:
        session.udf().register(*arguments)


def function_problem(said: str) -> tuple[str, str] | None:
    """The error of one of these functions and its remedy; None if the message comes from elsewhere."""
    for source in _SOURCES:
        if said.startswith(source.PROBLEM):
            message, _, hint = said.removeprefix(source.PROBLEM).partition("\n")
            return message, hint
    return None


def _none(spark: SparkSession) -> Any:
    gateway: Any = spark.sparkContext._gateway
    return gateway.new_array(gateway.jvm.java.lang.Object, 0)
