"""Finds what a claim depends on: the law of popularity, and the choices that the paper leaves open.

The paper does not state every choice, so a claim that fails with ours may hold with another. A verdict says "depends"
only if definite answers contradict each other; an open answer may have another cause than the choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tocsin.lab.experiments.comparisons import UndecidedError
from tocsin.lab.experiments.declaration import Judgement, ReportTable, Value
from tocsin.lab.experiments.edge_caching.points import USUAL, Points
from tocsin.lab.experiments.results import MissingCellsError, RunResults

PointsJudge = Callable[[Points], tuple[bool | None, str]]
_DECIDED: Final = (True, False)
_WORDS: Final[dict[bool | None, str]] = {True: "holds", False: "does not", None: "open"}


def laws(results: RunResults) -> list[Value]:
    """Returns the laws under which claims are judged. Raises MissingCellsError if no subscriber retrieved anything."""
    if not any(row.metrics["hit_gb"] or row.metrics["miss_gb"] for row in results.select("sizes", {})):
        raise MissingCellsError("sizes: a retrieved result")
    return results.points("sizes", "popularity")


def verdict(results: RunResults, holds: PointsJudge, because: str) -> Judgement:
    """Returns "reproduced" or "not reproduced" for every size as usual, or "depends" if the sweep of choices gives the
    other answer beyond the error.

    A choice is compared with the usual one under the same law, and the usual one with the usual one under another law.
    An answer that is decided at every size is not looked up again at one size.
    """
    by_law = {law: holds(Points(results, law)) for law in laws(results)}
    figures = "; ".join(f"{law}: {figure}" for law, (_, figure) in by_law.items())
    answers = {law: law_answer for law, (law_answer, _) in by_law.items()}
    (base,) = results.points("sizes", "choice")  # the usual one, unless the user set another
    swept = {law: _by_choice(results, holds, law) for law in answers}
    holding, failing = (
        _list_choices(
            [_name_choice(str(base), law) for law, law_answer in answers.items() if law_answer is answer],
            [
                _name_choice(choice, law)
                for law, answers_by_choice in swept.items()
                for choice, choice_answer in answers_by_choice.items()
                if choice_answer is answer and _another(swept, law, choice) and (choice != base or answers[law] is None)
            ],
            results,
        )
        for answer in _DECIDED
    )
    open_ = ", ".join(str(law) for law, law_answer in answers.items() if law_answer is None)
    open_note = f"Under {open_} the error leaves open whether it holds at every size." if open_ else ""
    if holding and failing:
        return Judgement("depends", figures, _join(f"It holds {holding}; it does not {failing}.", open_note, because))
    if open_ and False not in answers.values():
        raise UndecidedError(f"the error is too large; take more replications. {figures}")
    reproduced = False not in answers.values()
    otherwise = _otherwise(swept, not reproduced, results)
    if reproduced:
        return Judgement("reproduced", figures, otherwise)
    return Judgement("not reproduced", figures, _join(because, open_note, otherwise))


def _join(*sentences: str) -> str:
    return " ".join(filter(None, sentences))


def _name_choice(choice: str, law: Value) -> str:
    return f"as usual ({law})" if choice == USUAL else f"with `{choice}` ({law})"


def _list_choices(everywhere: Sequence[str], swept: Sequence[str], results: RunResults) -> str:
    parts = [", ".join(everywhere)] if everywhere else []
    return " and ".join([*parts, f"{_place(results)} {', '.join(swept)}"] if swept else parts)


def _otherwise(swept: Mapping[Value, Mapping[str, bool | None]], answer: bool, results: RunResults) -> str:
    """Returns where the sweep of choices gives this answer beyond the error, which is not the verdict's."""
    places = []
    for law, answers_by_choice in swept.items():
        choices = [
            choice for choice, choice_answer in answers_by_choice.items() if choice_answer is answer and choice != USUAL
        ]
        if answers_by_choice.get(USUAL) is answer:
            places.append(f"as usual{f' and with {len(choices)} of the choices' if choices else ''} ({law})")
        elif choices:
            names = ", ".join(f"`{choice}`" for choice in choices)
            places.append(f"with {names} ({law}{', where it is open as usual' if USUAL in answers_by_choice else ''})")
    word = "it holds" if answer else "it does not hold"
    return f"But {_place(results)} {word} {', '.join(places)}." if places else ""


def _place(results: RunResults) -> str:
    (size,), (span_s,) = (results.points("choices", name) for name in ("size_mb", "span_s"))
    return f"at {size} MB over {float(span_s):g} s"


def _by_choice(results: RunResults, holds: PointsJudge, law: Value) -> dict[str, bool | None]:
    """Returns the answer for each choice that the run has cells for; none for a claim that needs several sizes."""
    answers: dict[str, bool | None] = {}
    for choice in _swept(results):
        try:
            answers[choice] = holds(Points(results, law, choice))[0]
        except MissingCellsError:
            continue
    return answers


def _swept(results: RunResults) -> list[str]:
    try:
        return [str(choice) for choice in results.points("choices", "choice")]
    except MissingCellsError:
        return []


def table(law: str, judged: Mapping[str, PointsJudge]) -> ReportTable:
    """Returns the table of every claim with every choice, under one law of popularity."""

    def make_rows(results: RunResults) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        results.select("choices", {"popularity": law})
        choices = _swept(results)
        answers_by_claim = {says: _by_choice(results, holds, law) for says, holds in judged.items()}
        rows = [
            [says, *(_cell(answers, choice) for choice in choices)]
            for says, answers in answers_by_claim.items()
            if answers
        ]
        return ("claim", *choices), rows

    return ReportTable(f"Which claim depends on which choice, {law}", _ABOUT, make_rows)


_ABOUT: Final = (
    "Each claim judged with one choice at a time, at the one size of the sweep `choices`; bold where the answer "
    "differs from the usual one beyond the error. A policy that a choice cannot affect counts as usual. Combinations "
    "of choices are not swept. At 95 % confidence a few of this many answers are due to chance."
)


def _cell(by: Mapping[str, bool | None], choice: str) -> str:
    if choice not in by:
        return "–"
    word = _WORDS[by[choice]]
    return f"**{word}**" if _differ(by[choice], by.get(USUAL)) else word


def _another(swept: Mapping[Value, Mapping[str, bool | None]], law: Value, choice: str) -> bool:
    """Whether the usual choice has the other answer; for the usual choice, whether another choice or law has it."""
    own_answers = swept[law]
    if choice != USUAL:
        return _differ(own_answers[choice], own_answers.get(USUAL))
    others = (*own_answers.values(), *(answers_by_choice.get(USUAL) for answers_by_choice in swept.values()))
    return any(_differ(own_answers[USUAL], other_answer) for other_answer in others)


def _differ(answer: bool | None, other: bool | None) -> bool:
    """Whether both are decided, and differ."""
    return {answer, other} == {True, False}
