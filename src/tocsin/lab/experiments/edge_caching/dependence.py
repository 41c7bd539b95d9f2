"""On what a claim depends: the law of popularity, and the choices that the paper leaves open."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tocsin.lab.experiments.declaration import Judged, Table, Value
from tocsin.lab.experiments.edge_caching.points import USUAL, Points
from tocsin.lab.experiments.judging import UndecidedError
from tocsin.lab.experiments.results import MissingCellsError, Results

Holds = Callable[[Points], tuple[bool | None, str]]
_SURE: Final = (True, False)
_WORDS: Final[dict[bool | None, str]] = {True: "holds", False: "does not", None: "open"}


def laws(results: Results) -> list[Value]:
    return results.points("sizes", "popularity")


def verdict(results: Results, holds: Holds, because: str) -> Judged:
    """Reproduced or not at every size as usual; dependent where another law or choice surely gives another answer."""
    usual = {law: holds(Points(results, law)) for law in laws(results)}
    figures = "; ".join(f"{law}: {figure}" for law, (_, figure) in usual.items())
    holding, failing = ([f"as usual ({law})" for law, (one, _) in usual.items() if one is wanted] for wanted in _SURE)
    for law in usual:
        found = by_choice(results, holds, law)
        for choice, one in found.items():
            if _another(found, choice):
                (holding if one else failing).append(f"with `{choice}` ({law})")
    if holding and failing:
        why = f"It holds {', '.join(holding)}; it does not {', '.join(failing)}."
        return Judged("depends", figures, f"{why} {because}".strip())
    if all(one for one, _ in usual.values()):
        return Judged("reproduced", figures)
    if not any(one is False for one, _ in usual.values()):
        raise UndecidedError(f"the error is too large; take more replications. {figures}")
    open_ = [str(law) for law, (one, _) in usual.items() if one is None]
    left = f" Under {', '.join(open_)} the error leaves it open." if open_ else ""
    return Judged("not reproduced", figures, f"{because}{left}".strip())


def by_choice(results: Results, holds: Holds, law: Value) -> dict[str, bool | None]:
    """Whether it holds with each choice for which the run has the cells; a claim that needs several sizes has none."""
    found: dict[str, bool | None] = {}
    for choice in _swept(results):
        try:
            found[choice] = holds(Points(results, law, choice))[0]
        except MissingCellsError:
            continue
    return found


def _swept(results: Results) -> list[str]:
    try:
        return [str(choice) for choice in results.points("choices", "choice")]
    except MissingCellsError:
        return []


def table(law: str, judged: Mapping[str, Holds]) -> Table:
    """Every claim with every choice, under one law of popularity."""

    def made(results: Results) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        results.select("choices", {"popularity": law})
        choices = _swept(results)
        found = {says: by_choice(results, holds, law) for says, holds in judged.items()}
        rows = [[says, *(_cell(one, choice) for choice in choices)] for says, one in found.items() if one]
        return ("claim", *choices), rows

    return Table(f"Which claim depends on which choice, {law}", _ABOUT, made)


_ABOUT: Final = (
    "Each claim judged with one choice at a time, at the one size of the sweep `choices`; bold where the answer is "
    "surely another one than as usual. A policy that a choice cannot touch counts as usual. Combinations of choices "
    "are not swept. At 95 % confidence a few of so many answers are chance."
)


def _cell(found: Mapping[str, bool | None], choice: str) -> str:
    if choice not in found:
        return "–"
    word = _WORDS[found[choice]]
    return f"**{word}**" if _another(found, choice) else word


def _another(found: Mapping[str, bool | None], choice: str) -> bool:
    """Whether the choice surely gives another answer: both are sure, and they differ."""
    return {found[choice], found.get(USUAL)} == {True, False}
