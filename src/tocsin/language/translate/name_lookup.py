"""What the translator asks of the world around it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, Protocol

from tocsin.rules.model.types import ObjectType, Type


class Dataset(Protocol):
    @property
    def dataverse(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def type(self) -> ObjectType: ...


class Function(Protocol):
    @property
    def dataverse(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def parameters(self) -> tuple[str, ...]: ...
    @property
    def body(self) -> str: ...
    @property
    def language(self) -> Literal["SQL", "PYTHON"]:
        """The body of one in Python is `module:function`; `returns` and `optional` are for those."""
        ...

    @property
    def returns(self) -> Type: ...
    @property
    def optional(self) -> bool: ...


class NameLookup(Protocol):
    """The catalog as one statement sees it."""

    def find_dataset(self, dataverse: str, name: str) -> Dataset | None: ...

    def find_function(self, dataverse: str, name: str, arity: int) -> Function | None: ...

    def arities(self, dataverse: str, name: str) -> Sequence[int]:
        """How many parameters the functions of that name take, for an error's hint."""
        ...

    def suggestions(self, dataverse: str) -> Sequence[str]:
        """Names of datasets, for an error's hint."""
        ...


class DatasetScans(Protocol):
    """Gives the names under which Spark reads states of datasets, and calls functions in Python."""

    def scan(self, dataset: Dataset, commit: int | None, at: datetime | None) -> str: ...

    def called(self, function: Function, arguments: Sequence[Type]) -> str:
        """The name under which Spark calls a function in Python with arguments of these types."""
        ...


class TypeAnalyser(Protocol):
    """Spark's analyser, which knows every function it has."""

    def columns(self, sql: str) -> list[tuple[str, Type]]:
        """Names and types of what a query yields, without running it; FunctionError gives Spark's reason against it."""
        ...
