"""Which of many make something fail: parts are tried, and parts of those that fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

PARTS: Final = 4
_E = TypeVar("_E", bound=Exception)
_T = TypeVar("_T")


def failing(
    count: int, failure: Callable[[int, int], _E | None], most: int, over: Callable[[], bool] = lambda: False
) -> dict[int, _E]:
    """The places that fail by themselves, and how, in their order. It fails with all of them together. Where they are
    more than `most`, or it is over, some of them."""
    found: dict[int, _E] = {}
    doubtful = [(0, count)] if count else []
    while doubtful and len(found) <= most and not over():
        begin, end = doubtful.pop()
        if begin + 1 == end:
            error = failure(begin, end)
            if error is not None:
                found[begin] = error
            continue
        size = -(-(end - begin) // PARTS)
        bad = False
        for at in range(begin, end, size):
            part = (at, min(at + size, end))
            if part[1] == end and not bad:
                doubtful.append(part)  # who else; if it fails only together, none of its parts will
                continue
            error = failure(*part)
            if error is None:
                continue
            bad = True
            if part[0] + 1 == part[1]:
                found[at] = error
            else:
                doubtful.append(part)
    return dict(sorted(found.items()))


def spread(all_: Sequence[_T], count: int) -> list[_T]:
    """So many of them, or all, from everywhere."""
    total = len(all_)
    return [all_[at] for at in sorted({total * i // count for i in range(count)})] if total else []
