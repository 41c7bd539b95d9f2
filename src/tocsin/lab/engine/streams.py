"""Chance, one named stream per component: who joins or leaves an experiment changes nobody else's numbers."""

from __future__ import annotations

import hashlib

import numpy as np


class Streams:
    """The random streams of one run.

    A stream depends on the seed and on its own name alone, never on which streams exist beside it or which was asked
    for first. Asked for again, the same stream goes on where it was.
    """

    __slots__ = ("_known", "_path", "seed")

    def __init__(self, seed: int, *, path: tuple[str, ...] = ()) -> None:
        if seed < 0:
            raise ValueError(f"seed: must not be negative, got {seed}")
        self.seed = seed
        self._path = path
        self._known: dict[str, np.random.Generator] = {}

    def of(self, name: str) -> np.random.Generator:
        """The stream of the component with this name."""
        known = self._known.get(name)
        if known is None:
            # PCG64 by name: `default_rng` may be another generator one day, and old seeds must still replay.
            known = np.random.Generator(np.random.PCG64(self._sequence(name)))
            self._known[name] = known
        return known

    def within(self, name: str) -> Streams:
        """The streams of a component's own parts: `within("broker-1").of("service")` is no other's."""
        return Streams(self.seed, path=(*self._path, name))

    def _sequence(self, name: str) -> np.random.SeedSequence:
        # The length before each part: ("a", "bc") and ("ab", "c") are two components.
        said = "".join(f"{len(part)}:{part}" for part in (*self._path, name))
        digest = hashlib.sha256(said.encode()).digest()
        words = tuple(int.from_bytes(digest[at : at + 4], "big") for at in range(0, 16, 4))
        return np.random.SeedSequence(self.seed, spawn_key=words)
