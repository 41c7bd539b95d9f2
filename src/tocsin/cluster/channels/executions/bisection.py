"""Finds the items that make an operation fail, by bisection: tries parts, and then parts of the parts that fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

PARTS: Final = 4  # into how many parts a failing range is cut
_E = TypeVar("_E", bound=Exception)
_T = TypeVar("_T")


def find_failing(
    count: int, failure: Callable[[int, int], _E | None], most: int, over: Callable[[], bool] = lambda: False
) -> dict[int, _E]:
    """Returns the positions that fail by themselves, with their errors, in order. The caller knows that the whole range
    fails. Returns only some of them if there are more than `most`, or if `over` says that the search must end."""
    errors: dict[int, _E] = {}
    suspects = [(0, count)] if count else []
    while suspects and len(errors) <= most and not over():
        begin, end = suspects.pop()
        if begin + 1 == end:
            error = failure(begin, end)
            if error is not None:
                errors[begin] = error
            continue
        size = -(-(end - begin) // PARTS)
        has_failed_part = False
        for first in range(begin, end, size):
            part = (first, min(first + size, end))
            if part[1] == end and not has_failed_part:
                # The other parts passed, so the last part must fail. Test its pieces at once; if the failure needs
                # several items together, no piece fails.
                suspects.append(part)
                continue
            error = failure(*part)
            if error is None:
                continue
            has_failed_part = True
            if part[0] + 1 == part[1]:
                errors[first] = error
            else:
                suspects.append(part)
    return dict(sorted(errors.items()))


def spread(all_: Sequence[_T], count: int) -> list[_T]:
    """Returns `count` items, or all if there are fewer, spread evenly over the sequence."""
    total = len(all_)
    return [all_[position] for position in sorted({total * i // count for i in range(count)})] if total else []
