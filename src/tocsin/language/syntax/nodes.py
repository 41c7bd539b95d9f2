"""The nodes of the syntax tree that SQL++ adds to sqlglot's.

They are apart from the parser, because the translator reads them and knows nothing of parsing.
"""

from __future__ import annotations

from typing import ClassVar

from sqlglot import exp

# The argument of a source's alias that holds the variable of AT.
POSITION = "position"
# The argument of a GROUP BY that holds the fields of `GROUP AS g(x AS field, …)`.
GROUP_FIELDS = "group_fields"


class ValueOf(exp.Expression):
    """`SELECT VALUE this`"""

    arg_types: ClassVar[dict[str, bool]] = {"this": True}


class Let(exp.Expression):
    """`LET alias = this`; with `is_range` a query may name its fields without prefix, as for a FROM variable."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "alias": True, "is_range": False}


class RowOf(exp.Expression):
    """The result of `SELECT expressions` for one row, as a value."""

    arg_types: ClassVar[dict[str, bool]] = {"expressions": True}


class PlaceOf(exp.Expression):
    """The position, from 1, of a row among the rows with the same `this`, ordered by `expressions`."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "expressions": False}


class FromValue(exp.Expression):
    """`FROM this AS alias [AT i]` or `[LEFT] UNNEST this AS alias [AT i]`, where `this` yields a collection."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "alias": False, "outer": False}


class NumberedItems(exp.Expression):
    """The items of the source `this` as objects `{item, position}`, for `FROM this AS x AT i`."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True}


class ObjectOf(exp.Expression):
    """`{name: value, …}`; the expressions are `FieldOf`."""

    arg_types: ClassVar[dict[str, bool]] = {"expressions": False}


class FieldOf(exp.Expression):
    arg_types: ClassVar[dict[str, bool]] = {"this": True, "expression": True}


class MultisetOf(exp.Expression):
    arg_types: ClassVar[dict[str, bool]] = {"expressions": False}


class IsKind(exp.Expression):
    """`this IS MISSING | UNKNOWN | VALUED | NULL`"""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "kind": True}


class Positive(exp.Expression):
    """`+this`"""

    arg_types: ClassVar[dict[str, bool]] = {"this": True}


class Quantified(exp.Expression):
    """`SOME | EVERY alias IN this SATISFIES condition`"""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "alias": True, "condition": True, "every": False}
