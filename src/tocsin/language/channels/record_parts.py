"""Whether a channel's answers for some of the new records, and for the others, make up its answer for all of them.

They do where every query of the body reads new records in one place, joined and filtered only: what is grouped,
ordered, counted or made distinct needs all records at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from sqlglot import exp

from tocsin.language.channels.new_rows import wants_new
from tocsin.language.translate.name_lookup import Dataset
from tocsin.language.translate.projection import aggregates
from tocsin.language.translate.subqueries import unwrapped

_BRANCH: Final = "branch"  # on a table of the tree
_WHOLE: Final = ("group", "having", "distinct", "limit", "offset", "order", "with_", "qualify", "windows")


def mark_branches(body: exp.Expr) -> int:
    """Marks tables whose new records may be parted with the query of a UNION that they stand in; how many these are."""
    branches = list(_branches(body))
    for number, select in enumerate(branches):
        for table in _parted(select):
            table.meta[_BRANCH] = number
    return len(branches)


def branch_of(source: exp.Expr) -> int | None:
    return source.meta.get(_BRANCH)


def parted_datasets(new: Sequence[tuple[Dataset, int | None]], branches: int) -> tuple[Dataset, ...]:
    """The datasets whose new records, one after another, may be parted: each query reads those of one of them, once.

    `new` has every place where new records are read, with its query."""
    if any(branch is None for _, branch in new):
        return ()
    datasets = list({(dataset.dataverse, dataset.name): dataset for dataset, _ in new}.values())
    for chosen in (datasets, *([dataset] for dataset in datasets)):
        names = {(dataset.dataverse, dataset.name) for dataset in chosen}
        read = sorted(
            branch for dataset, branch in new if (dataset.dataverse, dataset.name) in names if branch is not None
        )
        if read == list(range(branches)):
            return tuple(chosen)
    return ()


def _branches(body: exp.Expr) -> Iterator[exp.Expr]:
    body = unwrapped(body)
    if isinstance(body, exp.SetOperation):
        yield from _branches(body.this)
        yield from _branches(body.expression)
    else:
        yield body


def _parted(select: exp.Expr) -> Iterator[exp.Table]:
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
        if isinstance(source, exp.Table) and wants_new(source):
            yield source
        elif isinstance(source, exp.Subquery):
            yield from _parted(unwrapped(source.this))
