"""Decides whether a channel may process its new records in parts: the answers for the parts make up the full answer.

This holds if every query of the body reads new records in one place, and only joins and filters them. Grouping, order,
limits and DISTINCT need all records at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from sqlglot import exp

from tocsin.language.channels.new_rows import is_watched
from tocsin.language.translate.interfaces import Dataset
from tocsin.language.translate.projection import aggregates
from tocsin.language.translate.rewrites.substitution import unwrap_query

_BRANCH: Final = "branch"  # key in the `meta` of a table node
_WHOLE: Final = ("group", "having", "distinct", "limit", "offset", "order", "with_", "qualify", "windows")


def mark_branches(body: exp.Expr) -> int:
    """Marks each table whose new records may be split with the number of its UNION branch; returns the branch count."""
    branches = list(_branches(body))
    for number, select in enumerate(branches):
        for table in _find_parted_tables(select):
            table.meta[_BRANCH] = number
    return len(branches)


def branch_of(source: exp.Expr) -> int | None:
    return source.meta.get(_BRANCH)


def find_parted_datasets(new: Sequence[tuple[Dataset, int | None]], branches: int) -> tuple[Dataset, ...]:
    """Returns the datasets whose new records may be split: every branch reads exactly one of them, once.

    `new` lists every place where the body reads new records, with the branch that reads there.
    """
    if any(branch is None for _, branch in new):
        return ()
    datasets = list({(dataset.dataverse, dataset.name): dataset for dataset, _ in new}.values())
    for candidates in (datasets, *([dataset] for dataset in datasets)):
        names = {(dataset.dataverse, dataset.name) for dataset in candidates}
        readers = sorted(
            branch for dataset, branch in new if (dataset.dataverse, dataset.name) in names if branch is not None
        )
        if readers == list(range(branches)):
            return tuple(candidates)
    return ()


def _branches(body: exp.Expr) -> Iterator[exp.Expr]:
    body = unwrap_query(body)
    if isinstance(body, exp.SetOperation):
        yield from _branches(body.this)
        yield from _branches(body.expression)
    else:
        yield body


def _find_parted_tables(select: exp.Expr) -> Iterator[exp.Table]:
    """Yields the tables of a query that only joins and filters, if the query reads their new rows."""
    if not isinstance(select, exp.Select) or any(select.args.get(clause) for clause in _WHOLE):
        return
    if any(aggregates(column) or column.find(exp.Window) for column in select.expressions):
        return
    joins = select.args.get("joins") or []
    if any((join.side or "") in ("RIGHT", "FULL") for join in joins):
        return
    plain = [join.this for join in joins if not join.side and (join.kind or "INNER") in ("INNER", "CROSS")]
    first = [select.args["from_"].this] if select.args.get("from_") else []
    for source in (*first, *plain):
        if isinstance(source, exp.Table) and is_watched(source):
            yield source
        elif isinstance(source, exp.Subquery):
            yield from _find_parted_tables(unwrap_query(source.this))
