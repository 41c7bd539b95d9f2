"""Declares the interfaces that the translator uses: the catalog, dataset scans and Spark's analyser."""

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
    @property
    def active(self) -> bool | None:
        """Whether queries see the commits of its rows. None: it has no commits of its own, so no channel reads it."""
        ...


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
        """For PYTHON, the body is `module:function`, and `returns` and `optional` apply."""
        ...

    @property
    def returns(self) -> Type: ...
    @property
    def optional(self) -> bool: ...


class NameLookup(Protocol):
    """The catalog as a single statement sees it."""

    def find_dataset(self, dataverse: str, name: str) -> Dataset | None: ...

    def find_function(self, dataverse: str, name: str, arity: int) -> Function | None: ...

    def arities(self, dataverse: str, name: str) -> Sequence[int]:
        """Returns the numbers of parameters that functions of this name take, for the hint of an error."""
        ...

    def suggestions(self, dataverse: str) -> Sequence[str]:
        """Returns names of datasets, for the hint of an error."""
        ...


class DatasetScans(Protocol):
    """Provides the names under which Spark reads states of datasets and calls Python functions."""

    def scan(self, dataset: Dataset, commit: int | None, at: datetime | None) -> str: ...

    def called(self, function: Function, arguments: Sequence[Type]) -> str:
        """Returns the name under which Spark calls a Python function with arguments of these types."""
        ...


class TypeAnalyser(Protocol):
    """Spark's analyser, which knows all of Spark's functions."""

    def columns(self, sql: str) -> list[tuple[str, Type]]:
        """Returns the names and types of a query's columns without running it.

        Raises FunctionError with Spark's reason if the query is invalid.
        """
        ...
