"""Bounds calls whose time or result grows with computed arguments, by our own functions (`bounded_values.java`).

levenshtein takes time in proportion to the product of two lengths, and cannot be stopped. repeat, lpad, sequence and
similar functions return a value as large as a number says. `call_limits` checks constant arguments. A condition around
the call would not be enough for computed ones: the optimizer evaluates a constant call in any branch. So an argument of
the call raises the error. Each argument is written once, because calls may be nested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from sqlglot import exp

from tocsin.language.functions.bounds import regular_expressions
from tocsin.language.types.typed_sql import FunctionError, build, constant_string, constant_whole, enclose, string

REPEAT: Final = "tocsin_repeat"
LEVENSHTEIN: Final = "tocsin_levenshtein"
LETTERS: Final = "tocsin_letters"
ITEMS: Final = "tocsin_items"
FORMAT: Final = "tocsin_format"
SEQUENCE: Final = "tocsin_sequence_fits"
STOPPABLE: Final = "tocsin_stoppable"

_Arguments = Sequence[exp.Expr]
_ANY_DISTANCE: Final = 2**31 - 1


def _call(name: str, *arguments: exp.Expr) -> exp.Expr:
    return exp.Anonymous(this=name, expressions=list(arguments))


def _text(value: exp.Expr) -> exp.Expr:
    return value if constant_string(value) is not None else exp.cast(value, "STRING")


def _levenshtein(given: _Arguments) -> exp.Expr:
    most = given[2] if len(given) > 2 else exp.Literal.number(_ANY_DISTANCE)
    return _call(LEVENSHTEIN, _text(given[0]), _text(given[1]), exp.cast(most, "INT"))


def _repeat(given: _Arguments) -> exp.Expr:
    return _call(REPEAT, _text(given[0]), exp.cast(given[1], "INT"))


def _guard_argument(name: str, place: int, guard: str) -> Callable[[_Arguments], exp.Expr]:
    """Returns a builder of the call that passes a computed number through a guard."""

    def make_call(given: _Arguments) -> exp.Expr:
        size = given[place]
        if constant_whole(size) is not None:
            return _call(name, *given)
        return _call(name, *given[:place], _call(guard, exp.cast(size, "INT"), string(name)), *given[place + 1 :])

    return make_call


def _check_format_of(name: str) -> Callable[[_Arguments], exp.Expr]:
    def make_call(given: _Arguments) -> exp.Expr:
        form = given[0]
        return _call(name, form if constant_string(form) is not None else _call(FORMAT, _text(form), string(name)),
                     *given[1:])  # fmt: skip

    return make_call


def _sequence(given: _Arguments) -> exp.Expr:
    if all(constant_whole(argument) is not None for argument in given):
        return _call("sequence", *given)
    step = given[2] if len(given) > 2 else exp.Literal.number(0)
    bounds = {name: exp.column(name, table="__s") for name in ("a", "b", "s")}
    fits = _call(SEQUENCE, *(bound.copy() for bound in bounds.values()))
    last = exp.If(this=fits, true=bounds["b"].copy(), false=exp.null())
    sequence = _call("sequence", bounds["a"], last, *([bounds["s"]] if len(given) > 2 else []))
    return build(
        "get(transform(array(named_struct('a', _a, 'b', _b, 's', _step)), __s -> _sequence), 0)",
        _a=given[0], _b=given[1], _step=step, _sequence=sequence,
    )  # fmt: skip


# The allowed numbers of arguments, and the builder.
REWRITES: Final[dict[str, tuple[range, Callable[[_Arguments], exp.Expr]]]] = {
    "levenshtein": (range(2, 4), _levenshtein),
    "repeat": (range(2, 3), _repeat),
    "space": (range(1, 2), _guard_argument("space", 0, LETTERS)),
    "lpad": (range(2, 4), _guard_argument("lpad", 1, LETTERS)),
    "rpad": (range(2, 4), _guard_argument("rpad", 1, LETTERS)),
    "array_repeat": (range(2, 3), _guard_argument("array_repeat", 1, ITEMS)),
    "array_insert": (range(3, 4), _guard_argument("array_insert", 1, ITEMS)),
    "format_string": (range(1, 1_000), _check_format_of("format_string")),
    "printf": (range(1, 1_000), _check_format_of("printf")),
    "sequence": (range(2, 4), _sequence),
}
_REWRITES: Final = {**regular_expressions.REWRITES, **REWRITES}

# Nodes in our own templates for which sqlglot has classes.
_PARSED: Final[dict[type[exp.Expr], tuple[str, tuple[str, ...]]]] = {
    exp.RegexpLike: ("rlike", ("this", "expression")),
    exp.RegexpExtract: ("regexp_extract", ("this", "expression", "group")),
    exp.RegexpExtractAll: ("regexp_extract_all", ("this", "expression", "group")),
    exp.RegexpReplace: ("regexp_replace", ("this", "expression", "replacement", "position")),
}


def rewrite_calls(tree: exp.Expr) -> exp.Expr:
    """Replaces every call of a Spark function that cannot be stopped by our own, or guards its argument.

    Run this after all checks: it writes names that no statement may contain.
    """
    if all(_find_call(node) is None and not _reads_range(node) for node in tree.walk()):
        return tree
    tree = exp.Paren(this=tree.copy())
    for select in [node for node in tree.find_all(exp.Select) if _reads_range(node)]:
        # Spark's range, read row by row, does not check whether its task was killed. This condition does.
        select.where(_call(STOPPABLE, select.expressions[0].copy()), copy=False)
    for node in reversed(list(tree.walk())):  # the innermost first
        call = _find_call(node)
        if call is not None:
            node.replace(enclose(_rewrite(*call)))
    result: exp.Expr = tree.this
    return result.pop()


def _reads_range(node: exp.Expr) -> bool:
    """Whether this is the query of the columns of range(…), which has no other clauses."""
    source = node.args["from_"].this if isinstance(node, exp.Select) and node.args.get("from_") else None
    if not isinstance(source, exp.Table) or not isinstance(source.this, exp.Anonymous):
        return False
    return str(source.this.this).lower() == "range"


def _find_call(node: exp.Expr) -> tuple[str, list[exp.Expr]] | None:
    """Returns name and arguments of a call to be replaced, or None for another node."""
    if isinstance(node, exp.Anonymous):
        name = str(node.this).lower()
        return (name, node.expressions) if name in _REWRITES else None
    if type(node) in _PARSED:
        name, arguments = _PARSED[type(node)]
        return name, [node.args[argument] for argument in arguments if node.args.get(argument) is not None]
    return None


def _rewrite(name: str, arguments: Sequence[exp.Expr]) -> exp.Expr:
    counts, rewrite = _REWRITES[name]
    if len(arguments) not in counts:
        raise FunctionError(f"{name} takes {' or '.join(map(str, counts[:4]))} arguments")
    return rewrite([argument.copy() for argument in arguments])
