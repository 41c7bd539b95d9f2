"""On what a claim depends: the law of popularity, and the choices that the paper leaves open."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tocsin.lab.experiments.comparisons import UndecidedError
from tocsin.lab.experiments.declaration import Judgement, ReportTable, Value
from tocsin.lab.experiments.edge_caching.points import USUAL, Points
from tocsin.lab.experiments.results import MissingCellsError, RunResults

Holds = Callable[[Points], tuple[bool | None, str]]
_SURE: Final = (True, False)
_WORDS: Final[dict[bool | None, str]] = {True: "holds", False: "does not", None: "open"}


def laws(results: RunResults) -> list[Value]:
    """Those under which claims are judged. Of a run in which nobody got anything none is."""
    if not any(row.metrics["hit_gb"] or row.metrics["miss_gb"] for row in results.select("sizes", {})):
        raise MissingCellsError("sizes: a result that anybody retrieved")
    return results.points("sizes", "popularity")


def verdict(results: RunResults, holds: Holds, because: str) -> Judgement:
    """Reproduced or not at every size as usual; dependent where the sweep of choices surely has the other answer.

    There a choice is held against the usual one under the same law, and the usual one against that under another law.
    What is sure at every size is not asked again at one.
    """
    found = {law: holds(Points(results, law)) for law in laws(results)}
    figures = "; ".join(f"{law}: {figure}" for law, (_, figure) in found.items())
    answers = {law: one for law, (one, _) in found.items()}
    (base,) = results.points("sizes", "choice")  # the usual one, unless another was asked for
    swept = {law: by_choice(results, holds, law) for law in answers}
    holding, failing = (
        _listed(
            [_named(str(base), law) for law, one in answers.items() if one is wanted],
            [
                _named(choice, law)
                for law, by in swept.items()
                for choice, one in by.items()
                if one is wanted and _another(swept, law, choice) and (choice != base or answers[law] is None)
            ],
            results,
        )
        for wanted in _SURE
    )
    open_ = ", ".join(str(law) for law, one in answers.items() if one is None)
    left = f"Under {open_} the error leaves open whether it holds at every size." if open_ else ""
    if holding and failing:
        return Judgement("depends", figures, _joined(f"It holds {holding}; it does not {failing}.", left, because))
    if open_ and False not in answers.values():
        raise UndecidedError(f"the error is too large; take more replications. {figures}")
    reproduced = False not in answers.values()
    otherwise = _otherwise(swept, not reproduced, results)
    if reproduced:
        return Judgement("reproduced", figures, otherwise)
    return Judgement("not reproduced", figures, _joined(because, left, otherwise))


def _joined(*sentences: str) -> str:
    return " ".join(filter(None, sentences))


def _named(choice: str, law: Value) -> str:
    return f"as usual ({law})" if choice == USUAL else f"with `{choice}` ({law})"


def _listed(everywhere: Sequence[str], swept: Sequence[str], results: RunResults) -> str:
    parts = [", ".join(everywhere)] if everywhere else []
    return " and ".join([*parts, f"{_place(results)} {', '.join(swept)}"] if swept else parts)


def _otherwise(swept: Mapping[Value, Mapping[str, bool | None]], answer: bool, results: RunResults) -> str:
    """Where the sweep of choices surely has this answer, which is not the verdict's."""
    told = []
    for law, by in swept.items():
        choices = [choice for choice, one in by.items() if one is answer and choice != USUAL]
        if by.get(USUAL) is answer:
            told.append(f"as usual{f' and with {len(choices)} of the choices' if choices else ''} ({law})")
        elif choices:
            named = ", ".join(f"`{choice}`" for choice in choices)
            told.append(f"with {named} ({law}{', where it is open as usual' if USUAL in by else ''})")
    word = "it holds" if answer else "it does not hold"
    return f"But {_place(results)} {word} {', '.join(told)}." if told else ""


def _place(results: RunResults) -> str:
    (size,), (span_s,) = (results.points("choices", name) for name in ("size_mb", "span_s"))
    return f"at {size} MB over {float(span_s):g} s"


def by_choice(results: RunResults, holds: Holds, law: Value) -> dict[str, bool | None]:
    """Whether it holds with each choice for which the run has the cells; a claim that needs several sizes has none."""
    found: dict[str, bool | None] = {}
    for choice in _swept(results):
        try:
            found[choice] = holds(Points(results, law, choice))[0]
        except MissingCellsError:
            continue
    return found


def _swept(results: RunResults) -> list[str]:
    try:
        return [str(choice) for choice in results.points("choices", "choice")]
    except MissingCellsError:
        return []


def table(law: str, judged: Mapping[str, Holds]) -> ReportTable:
    """Every claim with every choice, under one law of popularity."""

    def made(results: RunResults) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        results.select("choices", {"popularity": law})
        choices = _swept(results)
        found = {says: by_choice(results, holds, law) for says, holds in judged.items()}
        rows = [[says, *(_cell(by, choice) for choice in choices)] for says, by in found.items() if by]
        return ("claim", *choices), rows

    return ReportTable(f"Which claim depends on which choice, {law}", _ABOUT, made)


_ABOUT: Final = (
    "Each claim judged with one choice at a time, at the one size of the sweep `choices`; bold where the answer is "
    "surely another one than as usual. A policy that a choice cannot touch counts as usual. Combinations of choices "
    "are not swept. At 95 % confidence a few of so many answers are chance."
)


def _cell(by: Mapping[str, bool | None], choice: str) -> str:
    if choice not in by:
        return "–"
    word = _WORDS[by[choice]]
    return f"**{word}**" if _differ(by[choice], by.get(USUAL)) else word


def _another(swept: Mapping[Value, Mapping[str, bool | None]], law: Value, choice: str) -> bool:
    """Whether surely the other answer is that of the usual choice; or, for that, of another choice or law."""
    by = swept[law]
    if choice != USUAL:
        return _differ(by[choice], by.get(USUAL))
    others = (*by.values(), *(other.get(USUAL) for other in swept.values()))
    return any(_differ(by[USUAL], one) for one in others)


def _differ(one: bool | None, other: bool | None) -> bool:
    """Both are sure, and they differ."""
    return {one, other} == {True, False}
