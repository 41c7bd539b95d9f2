"""Random numbers: one named stream per component, so that adding a component changes no other component's numbers.

Policies are compared on the same arrivals, and an old seed must still replay. So a stream depends on the seed and its
own name alone, and the generator is named instead of being numpy's default.
"""

from __future__ import annotations

import hashlib

import numpy as np


class Streams:
    """The random streams of one run.

    A stream depends only on the seed and its name, not on the other streams or the order of requests. A second request
    returns the same stream, which continues where it was.
    """

    __slots__ = ("_known", "_path", "seed")

    def __init__(self, seed: int, *, path: tuple[str, ...] = ()) -> None:
        if seed < 0:
            raise ValueError(f"seed: must not be negative, got {seed}")
        self.seed = seed
        self._path = path
        self._known: dict[str, np.random.Generator] = {}

    def of(self, name: str) -> np.random.Generator:
        """Returns the stream of the component with this name."""
        stream = self._known.get(name)
        if stream is None:
            # Name PCG64 explicitly: `default_rng` may change, and old seeds must still replay.
            stream = np.random.Generator(np.random.PCG64(self._sequence(name)))
            self._known[name] = stream
        return stream

    def within(self, name: str) -> Streams:
        """Returns the streams of a component's own parts: `within("broker-1").of("service")` belongs to it alone."""
        return Streams(self.seed, path=(*self._path, name))

    def _sequence(self, name: str) -> np.random.SeedSequence:
        # Put the length before each part, so that ("a", "bc") and ("ab", "c") differ.
        text = "".join(f"{len(part)}:{part}" for part in (*self._path, name))
        digest = hashlib.sha256(text.encode()).digest()
        words = tuple(int.from_bytes(digest[start : start + 4], "big") for start in range(0, 16, 4))
        return np.random.SeedSequence(self.seed, spawn_key=words)
