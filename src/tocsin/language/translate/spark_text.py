"""Renders trees as text for Spark. All SQL goes through here.

User input reaches Spark only as a quoted identifier or an escaped literal. As a safeguard against errors of the
translator, this module checks every node of the tree again.
"""

from __future__ import annotations

import re
from typing import Final

from sqlglot import exp
from sqlglot.generator import Generator
from sqlglot.generators.spark import SparkGenerator

from tocsin.language.functions import function_registry, text_search
from tocsin.language.functions.bounds import call_limits, like_patterns
from tocsin.language.functions.bounds.bounded_calls import rewrite_calls
from tocsin.language.types.typed_sql import FunctionError, enclose

_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]*\.?[0-9]+(?:[Ee][+-]?[0-9]+)?", re.ASCII)
_HEX: Final = re.compile(r"[0-9A-Fa-f]*", re.ASCII)
# Names of Python functions in Spark, and in a channel's query.
_IN_PYTHON: Final = re.compile(r"tocsin_(?:python_[0-9a-f]{32}_[0-9]+|channel_[0-9a-f]{32}_call_[0-9]+)", re.ASCII)
_NODES: Final = frozenset((
    # Queries.
    exp.Select, exp.Subquery, exp.Union, exp.Intersect, exp.Except, exp.With, exp.CTE, exp.From, exp.Table,
    exp.TableAlias, exp.Join, exp.Lateral, exp.Values, exp.Tuple, exp.Where, exp.Group, exp.Having, exp.Order,
    exp.Ordered, exp.Limit, exp.Offset, exp.Distinct, exp.Hint, exp.Rollup, exp.Cube, exp.GroupingSets,
    # Names and constants.
    exp.Column, exp.Identifier, exp.Alias, exp.Star, exp.Literal, exp.HexString, exp.Null, exp.Boolean, exp.Placeholder,
    exp.Var, exp.DataType, exp.DataTypeParam, exp.ColumnDef, exp.Dot, exp.Bracket, exp.Paren, exp.Lambda,
    # Operators.
    exp.And, exp.Or, exp.Not, exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ,
    exp.Is, exp.In, exp.Between, exp.Exists, exp.Like, exp.ILike, exp.RegexpLike, exp.Escape, exp.Add, exp.Sub, exp.Mul,
    exp.Div, exp.Mod, exp.IntDiv, exp.Neg, exp.DPipe, exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseNot,
    exp.BitwiseLeftShift, exp.BitwiseRightShift, exp.Case, exp.If, exp.Cast, exp.TryCast, exp.Interval,
    # Calls.
    exp.Anonymous, exp.Extract, exp.Trim, exp.StrPosition, exp.Window, exp.WindowSpec, exp.Filter, exp.WithinGroup,
    exp.IgnoreNulls, exp.RespectNulls, exp.Struct, exp.PropertyEQ, exp.Array,
    # Calls in our own templates, for which sqlglot has classes. Calls that users write are Anonymous.
    exp.Abs, exp.AnyValue, exp.ArrayDistinct, exp.ArrayFilter, exp.ArrayMax, exp.ArrayMin, exp.ArrayPosition,
    exp.ArraySize, exp.ArraySlice, exp.ArraySort, exp.MapKeys,
    exp.ArrayToString, exp.Asin, exp.Atan2, exp.Ceil, exp.Coalesce, exp.Concat, exp.Contains, exp.Cos,
    exp.DateFromUnixDate, exp.Degrees, exp.Flatten, exp.Floor, exp.GenerateSeries, exp.Greatest, exp.Grouping,
    exp.IsNan, exp.JSONFormat, exp.Least, exp.Length, exp.Log, exp.Lower, exp.MapFromEntries, exp.Nullif, exp.Pad,
    exp.Pi, exp.Pow, exp.Radians, exp.Reduce, exp.RegexpExtract, exp.RegexpExtractAll, exp.RegexpReplace,
    exp.Replace, exp.Rint, exp.SafeSubtract, exp.Sign, exp.Sin, exp.Sqrt, exp.StartsWith, exp.Substring,
    exp.TimeStrToTime, exp.TimeToStr, exp.Transform, exp.Translate, exp.UnixDate, exp.UnixMicros, exp.UnixMillis,
    exp.UnixSeconds,
))  # fmt: skip
_TYPES: Final = frozenset(
    exp.DataType.Type[name]
    for name in (
        "BOOLEAN TINYINT SMALLINT INT BIGINT FLOAT DOUBLE DECIMAL TEXT VARCHAR CHAR BINARY DATE TIMESTAMP TIMESTAMPTZ"
        " TIMESTAMPLTZ TIMESTAMPNTZ ARRAY MAP STRUCT VARIANT INTERVAL"
    ).split()
)
_HINTS: Final = frozenset(("BROADCAST",))


def render(tree: exp.Expr) -> str:
    """Returns the text of a query or an expression that Spark will run."""
    linear = _linear(tree) if tree.find(exp.Like, exp.ILike) else tree
    return _text(rewrite_calls(_check_tree(linear)))


def render_for_analysis(tree: exp.Expr) -> str:
    """Returns the text of a query that Spark only analyses. LIKE stays as it is, because Spark matches nothing."""
    return _text(_check_tree(tree))


def _linear(tree: exp.Expr) -> exp.Expr:
    """Replaces every LIKE by our own linear-time matching; the innermost first, because they may be nested."""
    tree = exp.Paren(this=tree.copy())
    for like in reversed(list(tree.find_all(exp.Like, exp.ILike))):
        predicate = like.parent if isinstance(like.parent, exp.Escape) else like
        predicate.replace(enclose(like_patterns.rewrite_like(predicate)))
    result: exp.Expr = tree.this
    return result.pop()


def _check_tree(tree: exp.Expr) -> exp.Expr:
    for node in tree.walk():
        _check(node)
    return tree


class _PlainCasts(SparkGenerator):
    def cast_sql(self, expression: exp.Cast, safe_prefix: str | None = None) -> str:
        # Spark's own generator parses the names of types anew for each CAST, to find those of JSON. We make none.
        return Generator.cast_sql(self, expression, safe_prefix)


def _text(tree: exp.Expr) -> str:
    # Leave comments out: they could contain hints.
    return _PlainCasts(dialect="spark", comments=False).generate(tree)


def _check(node: exp.Expr) -> None:
    """Raises FunctionError if a node is not on the list, or contains text that could be read as SQL."""
    kind = type(node)
    if kind not in _NODES:
        raise FunctionError(f"{node.key.upper()} is no part of this language")
    match node:
        case exp.Literal():
            if not node.is_string and not _NUMBER.fullmatch(node.this):
                raise _foreign(node.this)
        case exp.Identifier():
            if not node.args.get("quoted") and not _WORD.fullmatch(node.this):
                raise _foreign(node.this)
        case exp.HexString():
            if not _HEX.fullmatch(node.this):
                raise _foreign(node.this)
        case exp.Anonymous():
            if not isinstance(node.this, str) or not _is_callable(node):
                raise FunctionError(f"unknown function {_shorten(node.name)}")
            call_limits.check_call(str(node.this).lower(), node.expressions)
        case exp.DataType():
            is_known = node.this in _TYPES or isinstance(node.this, exp.Interval)
            if not is_known or any(node.args.get(part) for part in ("kind", "collate")):
                raise FunctionError(
                    "unknown type: use boolean, int, bigint, double, decimal, string, date or timestamp"
                )
        case exp.Var():
            if node.name.lower() not in function_registry.UNITS:
                raise _foreign(node.name)
        case _:
            for value in node.args.values():
                for part in value if isinstance(value, list) else (value,):
                    if isinstance(part, str) and part.strip() and not all(map(_WORD.fullmatch, part.split())):
                        raise _foreign(part)


def _is_callable(node: exp.Anonymous) -> bool:
    name = str(node.this)
    if isinstance(node.parent, exp.Hint):
        return name in _HINTS
    known_names = function_registry.NAMES | function_registry.TABLE_FUNCTIONS | text_search.NAMES
    return name.lower() in known_names or bool(_IN_PYTHON.fullmatch(name))


def _foreign(text: str) -> FunctionError:
    return FunctionError(f"{_shorten(text)} cannot stand here")


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")
