"""Named streams of random numbers. Every random number of this project comes from this module.

The address of a *stream* is its ``purpose``, its integer seed and any number of names
and counters. A hash of the address is the key of a Philox counter generator. A stream has
no state that advances, so adding a stream, a layer or an evaluation changes no other
stream. No global generator decides a result: where torch draws from
nothing else, it is seeded from a stream and restored afterwards.

Numbers are computed from the generator's raw 64-bit words by fixed formulas, because
NumPy may change ``Generator.normal`` and ``Generator.permutation`` between releases, and
equal seeds must give equal bits.

Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3" (Philox).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
from numpy.typing import NDArray

from grok.errors import ConfigError, nearest

MAX_SEED: Final = 2**63 - 1
"""Largest seed: it must fit into a signed 64-bit column of the store."""

RUN_STREAMS: Final = ("split", "init", "order")
"""The streams that decide a run without dropout."""
OTHER_STREAMS: Final = ("dropout", "eval", "sample", "perturb")
STREAMS: Final = (*RUN_STREAMS, *OTHER_STREAMS)
"""The streams whose seeds are derived from the master seed."""
CROSSED: Final = {"arithmetic": RUN_STREAMS, "gpt": ("init", "order", "dropout")}
"""The streams that a crossed design takes apart, by mode."""


def derive_seed(seed: int, stream: str) -> int:
    """Return the seed of ``stream`` for the master ``seed``, in [0, 2**63).

    It is a hash of both, so the seeds of neighbouring master seeds and of different streams
    are independent.
    """
    digest = hashlib.blake2b(f"{stream}:{seed}".encode(), digest_size=8, person=b"grok.seed").digest()
    return int.from_bytes(digest, "little") >> 1


@dataclass(frozen=True, slots=True)
class StreamSeeds:
    """The resolved seed of every stream (see ``STREAMS``)."""

    split: int
    init: int
    order: int
    dropout: int
    eval: int
    sample: int
    perturb: int

    @classmethod
    def derive(cls, seed: int, overrides: dict[str, int | None] | None = None) -> StreamSeeds:
        """Return the seeds for the master ``seed``; an integer in ``overrides`` replaces a stream's seed."""
        given = {name: value for name, value in (overrides or {}).items() if value is not None}
        return cls(**{f.name: derive_seed(seed, f.name) for f in fields(cls)} | given)


@dataclass(frozen=True, slots=True)
class Stream:
    """The random numbers at one address: ``Stream("order", seed).at(epoch).permutation(n)``.

    ``at`` returns the stream at a new address. Two draws from one address return equal
    numbers.
    """

    purpose: str
    seed: int
    path: tuple[str | int, ...] = ()

    def at(self, *parts: str | int) -> Stream:
        """Return the stream at a name or counter below this one."""
        return Stream(self.purpose, self.seed, self.path + parts)

    def key(self) -> int:
        """Return the 128-bit hash of this address."""
        # repr makes the counter 1 differ from the name "1", and quotes make ("a", "b") differ from ("a/b",)
        address = "\x1f".join(repr(part) for part in (self.purpose, self.seed, *self.path))
        digest = hashlib.blake2b(address.encode(), digest_size=16, person=b"grok.stream").digest()
        return int.from_bytes(digest, "little")

    def seed64(self) -> int:
        """Return a 63-bit seed for another generator (``torch.Generator.manual_seed``)."""
        return self.key() & MAX_SEED

    def words(self, n: int) -> NDArray[np.uint64]:
        """Return ``n`` raw 64-bit words."""
        return np.asarray(np.random.Philox(key=self.key()).random_raw(n), dtype=np.uint64)

    def uniform(self, n: int) -> NDArray[np.float64]:
        """Return ``n`` floats uniform in (0, 1), at the midpoints of 2**52 equal cells (never 0 or 1)."""
        return ((self.words(n) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52

    def normal(self, n: int) -> NDArray[np.float64]:
        """Return ``n`` standard normal floats, by inversion of the normal distribution."""
        from scipy.special import ndtri

        return np.asarray(ndtri(self.uniform(n)), dtype=np.float64)

    def permutation(self, n: int) -> NDArray[np.int64]:
        """Return a random order of ``0 .. n-1``: the stable sort order of ``n`` random words."""
        return np.argsort(self.words(n), kind="stable").astype(np.int64)

    def integers(self, n: int, high: int) -> NDArray[np.int64]:
        """Return ``n`` integers in ``[0, high)``; the bias is below ``high / 2**53``."""
        return np.floor(self.uniform(n) * high).astype(np.int64)


def layer_seeds(names: list[str], layers: dict[str, int], init_seed: int) -> dict[str, int]:
    """Return the init seed of every tensor in ``names``.

    An entry of ``layers`` applies to the tensor of its name, or to all tensors of which it is a
    prefix of whole dotted components; the longest match wins. Other tensors get ``init_seed``.

    Raises:
        ConfigError: an entry of ``layers`` matches no tensor.
    """
    seeds = dict.fromkeys(names, init_seed)
    for prefix in sorted(layers, key=lambda p: len(p.split("."))):
        matched = [n for n in names if n == prefix or n.startswith(prefix + ".")]
        if not matched:
            known = sorted({".".join(n.split(".")[:i]) for n in names for i in range(1, n.count(".") + 2)})
            raise ConfigError(
                f"seeds.layers: '{prefix}' names no tensor{nearest(prefix, known)}: expected a tensor or a prefix of "
                f"whole components out of {', '.join(names)}"
            )
        for name in matched:
            seeds[name] = layers[prefix]
    return seeds
