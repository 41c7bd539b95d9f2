"""Replaces Spark functions that nobody can stop by our own, which return the same results but end.

Spark's functions still serve for type analysis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlglot import exp

from tocsin.language.functions.bounds import bounded_calls, regular_expressions
from tocsin.language.types.typed_sql import FunctionError, enclose

_REWRITES: Final = {**regular_expressions.REWRITES, **bounded_calls.REWRITES}

# Nodes in our own templates for which sqlglot has classes.
_PARSED: Final[dict[type[exp.Expr], tuple[str, tuple[str, ...]]]] = {
    exp.RegexpLike: ("rlike", ("this", "expression")),
    exp.RegexpExtract: ("regexp_extract", ("this", "expression", "group")),
    exp.RegexpExtractAll: ("regexp_extract_all", ("this", "expression", "group")),
    exp.RegexpReplace: ("regexp_replace", ("this", "expression", "replacement", "position")),
}


def rewrite_calls(tree: exp.Expr) -> exp.Expr:
    """Replaces every such call by a call of our function, or of Spark's with a guarded argument.

    Run this after all checks: it writes names that no statement may contain.
    """
    if all(_called(node) is None for node in tree.walk()):
        return tree
    tree = exp.Paren(this=tree.copy())
    for node in reversed(list(tree.walk())):  # the innermost first
        call = _called(node)
        if call is not None:
            node.replace(enclose(_rewritten(*call)))
    result: exp.Expr = tree.this
    return result.pop()


def _called(node: exp.Expr) -> tuple[str, list[exp.Expr]] | None:
    """Returns name and arguments of a call to be replaced, or None for another node."""
    if isinstance(node, exp.Anonymous):
        name = str(node.this).lower()
        return (name, node.expressions) if name in _REWRITES else None
    if type(node) in _PARSED:
        name, arguments = _PARSED[type(node)]
        return name, [node.args[argument] for argument in arguments if node.args.get(argument) is not None]
    return None


def _rewritten(name: str, arguments: Sequence[exp.Expr]) -> exp.Expr:
    counts, rewrite = _REWRITES[name]
    if len(arguments) not in counts:
        raise FunctionError(f"{name} takes {' or '.join(map(str, counts[:4]))} arguments")
    return rewrite([argument.copy() for argument in arguments])
