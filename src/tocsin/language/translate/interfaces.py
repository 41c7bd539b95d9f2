"""Declares the interfaces that the translator uses: the catalog, dataset scans, Spark's analyser, and hooks.

The translator knows neither the catalog nor Spark, so tests and channels can translate without a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Literal, Protocol

from sqlglot import exp

from tocsin.language.types.typed_sql import TypedSql
from tocsin.rules.model.types import ObjectType, Type

if TYPE_CHECKING:
    from tocsin.language.translate.translator import Translator


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

    def suggest_dataset(self, dataverse: str, name: str) -> str | None:
        """Returns the hint for a dataset that does not exist, such as "did you mean Reports?"."""
        ...


class DatasetScans(Protocol):
    """Provides the names under which Spark reads states of datasets and calls Python functions."""

    def scan(self, dataset: Dataset, commit: int | None, at: datetime | None) -> str: ...

    def call_name(self, function: Function, arguments: Sequence[Type]) -> str:
        """Returns the name under which Spark calls a Python function with arguments of these types."""
        ...


class TypeAnalyser(Protocol):
    """Spark's analyser, which knows all of Spark's functions."""

    def columns(self, sql: str) -> list[tuple[str, Type]]:
        """Returns the names and types of a query's columns without running it.

        Raises FunctionError with Spark's reason if the query is invalid.
        """
        ...


class TranslationHooks(Protocol):
    """Where a channel's body differs from a query: `QueryHooks` serves queries, `language.channels.compiler` has
    the hooks of channels."""

    @property
    def defines_function(self) -> bool:
        """Whether this is the body of a function at its definition. Its parameters have no values yet."""
        ...

    @property
    def own_datasets(self) -> Mapping[str, Dataset]:
        """Datasets that are not in the catalog, by name."""
        ...

    def scan_dataset(self, dataset: Dataset, node: exp.Table, alias: str) -> exp.Expr:
        """Returns the relation under which Spark reads the dataset."""
        ...

    def call_name(self, function: Function, arguments: Sequence[Type]) -> str:
        """Returns the name under which Spark calls a Python function with arguments of these types."""
        ...

    def instant(self, kind: Type) -> TypedSql:
        """Returns the statement's instant, as a datetime, a date or a time."""
        ...

    def call_channel_function(self, name: str, node: exp.Anonymous, translator: Translator) -> TypedSql:
        """Translates is_new(v) and the other functions that only channels have."""
        ...

    def note_use(self, value: TypedSql, type_: Type) -> None:
        """Notes that the query uses an untyped value as this type. Channels infer the types of parameters from it."""
        ...

    def import_outer(self, condition: exp.Expr) -> None:
        """May import a subquery's outer values as a relation, so that `add_join_keys` can join by them."""
        ...

    def add_join_keys(self, query: exp.Select) -> exp.Select:
        """Returns the query with better join conditions."""
        ...

    def check_pattern(self, sql: exp.Expr, escape: str) -> exp.Expr:
        """Returns the pattern of a LIKE. Channels check patterns that come from parameters."""
        ...
