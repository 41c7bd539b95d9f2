"""Registers Python functions in Spark for queries, each under a name per combination of argument types.

A worker needs the types to decode its arguments from Arrow, so they belong to the registration. So does a digest of the
code's files: after an edit the next query gets a new name, and with it the new code.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol
from uuid import uuid4

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from tocsin.pipeline.datasets import layout
from tocsin.pipeline.python.protocol import Code, Signature, parse_call_error
from tocsin.pipeline.python.worker import FunctionLookUp, WorkerCall, gives
from tocsin.pipeline.spark.shipped_archives import pack_users_files, users_files
from tocsin.rules.model.types import Type

KEPT: Final = 512  # functions that Spark knows at once; the least recently used goes


class DeclaredFunction(Protocol):
    """A Python function as declared in the catalog; its body is `module:function`."""

    @property
    def name(self) -> str: ...
    @property
    def body(self) -> str: ...
    @property
    def returns(self) -> Type: ...
    @property
    def optional(self) -> bool: ...


class PythonFunctions:
    def __init__(
        self, spark: SparkSession, folder: Path, log_file: Path, timeout_s: float, shipped_folder: Path | None = None
    ) -> None:
        """`shipped_folder`: where archives for workers are made that do not see the folder."""
        self._spark = spark
        self._folder = folder
        self._said = log_file
        self._timeout_s = timeout_s
        self._modules = None if shipped_folder is None else ShippedModules(spark, folder, shipped_folder)
        self._names: OrderedDict[tuple[Code, Signature], str] = OrderedDict()
        self._prefix = f"tocsin_python_{uuid4().hex}"
        self._count = 0
        self._created = 0
        self._lock = threading.Lock()

    def called(self, function: DeclaredFunction, arguments: Sequence[Type], *, each: bool = False) -> str:
        """The name under which Spark calls the function with arguments of these types and its present code."""
        signature = Signature(function.name, tuple(arguments), function.returns, function.optional, each)
        key = self._code(function.body), signature
        with self._lock:
            name = self._names.get(key)
            if name is not None:
                self._names.move_to_end(key)
                return name
            self._count += 1
            name = f"{self._prefix}_{self._count}"
            udf = _udf(WorkerCall(*key), name, layout.spark_type(gives(signature)))
            self._spark.udf.register(name, udf)
            self._names[key] = name
            evicted = [self._names.popitem(last=False)[1]] if len(self._names) > KEPT else []
        for old in evicted:
            self._spark.sql(f"DROP TEMPORARY FUNCTION IF EXISTS {old}")
        return name

    def look_up(self, target: str, arity: int) -> None:
        """Raises CallError unless the function exists. Imports its module again, with all others of the folder."""
        with self._lock:
            self._created += 1
        look_up: Any = _udf(FunctionLookUp(self._code(target), arity), "look_up", "STRING")
        try:
            self._spark.range(1, numPartitions=1).select(look_up("id")).toArrow()
        except PySparkException as error:
            call_error = parse_call_error(str(error))
            if call_error is None:
                raise
            raise call_error from None

    def _code(self, target: str) -> Code:
        folder = str(self._folder)
        if self._modules is not None:
            archive = self._modules.send()
            version = f"{self._created} {archive}"
            return Code(target, "", version, "", self._timeout_s, shown_folder=folder, archive=archive)
        version = hashlib.sha256(repr((self._created, *_files(self._folder))).encode()).hexdigest()
        return Code(target, folder, version, str(self._said), self._timeout_s)


class ShippedModules:
    """The folder of users' modules at workers that do not see it: an archive, sent anew when a file has changed."""

    def __init__(self, spark: SparkSession, folder: Path, destination: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._destination = destination
        self._state: tuple[tuple[str, int, int], ...] | None = None
        self._archive = ""
        self._sent: set[str] = set()
        self._lock = threading.Lock()

    def send(self) -> str:
        """Returns the name of an archive with the present files, which Spark's next jobs have."""
        with self._lock:
            state = tuple(_states(users_files(self._folder)))
            if state != self._state:
                path = pack_users_files(self._folder, self._destination)
                if path.name not in self._sent:
                    self._spark.sparkContext.addArchive(str(path))
                    self._sent.add(path.name)
                self._state, self._archive = state, path.name
            return self._archive


def _udf(call: Callable[..., pa.Array], name: str, returns: str) -> UserDefinedFunction:
    return UserDefinedFunction(call, returns, name=name, evalType=PythonEvalType.SQL_SCALAR_ARROW_UDF)


def _files(folder: Path) -> Iterator[tuple[str, int, int]]:
    """The modules of the folder, with the file attributes that change when they do."""
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(
            subfolder for subfolder in folders if subfolder != "__pycache__" and not subfolder.startswith(".")
        )
        yield from _states(Path(where, name) for name in sorted(file for file in files if file.endswith(".py")))


def _states(paths: Iterable[Path]) -> Iterator[tuple[str, int, int]]:
    for path in paths:
        with suppress(OSError):
            status = path.stat()
            yield str(path), status.st_mtime_ns, status.st_size
