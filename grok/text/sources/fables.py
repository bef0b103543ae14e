"""Short generated fables: a corpus for tests and for first runs without a download.

A fable is a function of (seed, number). An animal wants something, meets a hindrance, gets help or
refuses it, and learns a lesson from the outcome. Names, pronouns and objects agree within a fable, so
that a small model can learn more than spelling.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Final

from grok.errors import DataError
from grok.streams import MAX_SEED, Stream
from grok.text.sources.files import InputDigest

_ANIMALS: Final = (
    "fox",
    "hare",
    "crow",
    "mouse",
    "goat",
    "otter",
    "owl",
    "hedgehog",
    "toad",
    "heron",
    "badger",
    "wren",
)
_NAMES: Final = (
    ("Ada", "she"), ("Bruno", "he"), ("Clio", "she"), ("Dario", "he"), ("Edda", "she"), ("Falk", "he"),
    ("Greta", "she"), ("Hugo", "he"), ("Ilse", "she"), ("Jonas", "he"), ("Kira", "she"), ("Lasse", "he"),
)  # fmt: skip
_NATURES: Final = ("proud", "shy", "hungry", "clever", "lazy", "curious", "stubborn", "cheerful")
_PLACES: Final = ("by the river", "at the edge of the wood", "on a windy hill", "behind the old mill", "in a dry field")
_WISHES: Final = (
    ("a ripe pear", "hung too high", "shook the branch", "the pear fell"),
    ("a round cheese", "lay under a heavy stone", "rolled the stone aside", "the cheese was free"),
    ("a warm nest", "was full of cold rain", "carried dry moss to it", "the nest was warm again"),
    ("a bright button", "had sunk into the pond", "dived to the bottom", "the button shone in the sun"),
    ("a basket of nuts", "stood across the stream", "laid a log over the water", "the nuts came home"),
    ("a jar of honey", "was shut with a tight lid", "turned the lid slowly", "the lid came off"),
)
_FAILURES: Final = ("jumped and jumped", "pulled until evening", "cried out in anger", "went round it seven times")
_PRIDE: Final = ('"I need nobody," said {n}.', '"Leave me alone," said {n}.', "{n} looked away and said nothing.")
_ASKS: Final = ('"Will you help me?" asked {n}.', '"I can not do it alone," said {n}.', '"Please, friend," said {n}.')
_HELPED: Final = (
    "Two hands are lighter than one wish.",
    "Who asks is half way home.",
    "A shared load is a small load.",
)
_REFUSED: Final = (
    "Pride keeps an empty table.",
    "Who sends help away goes hungry.",
    "A closed door lets in no friend.",
)


def write(count: int, seed: int) -> Iterator[str]:
    """Yield ``count`` fables; fable ``i`` depends on (seed, i) alone."""
    for number in range(count):
        yield _fable(Stream("fables", seed).at(number))


def parse(name: str) -> tuple[int, int]:
    """Return (count, seed) of ``"COUNT"`` or ``"COUNT:SEED"``.

    Raises:
        DataError: ``name`` has neither form.
    """
    count, _, seed = name.partition(":")
    try:
        numbers = int(count), int(seed or 0)
    except ValueError:
        numbers = 0, 0
    if numbers[0] < 1 or not 0 <= numbers[1] <= MAX_SEED:
        raise DataError(f"fables --input {name}: expected COUNT or COUNT:SEED, for example 2000:0")
    return numbers


def digest(name: str) -> InputDigest:
    """Return the hash of all the fables."""
    hasher, size = hashlib.sha256(), 0
    for fable in write(*parse(name)):
        data = fable.encode()
        hasher.update(len(data).to_bytes(8, "little") + data)
        size += len(data)
    return InputDigest(f"fables {name}", 1, size, hasher.hexdigest())


def _fable(stream: Stream) -> str:
    draws = iter(stream.uniform(16))

    def one(choices: Sequence[str]) -> str:
        return choices[int(next(draws) * len(choices))]

    (name, they), (friend, _) = (_NAMES[i] for i in stream.at("names").permutation(len(_NAMES))[:2])
    first, second = (_ANIMALS[i] for i in stream.at("animals").permutation(len(_ANIMALS))[:2])
    wish, trouble, deed, outcome = _WISHES[int(next(draws) * len(_WISHES))]
    them = "her" if they == "she" else "him"
    lines = [
        f"There was once {_article(nature := one(_NATURES))} {nature} {first} called {name}. {they.capitalize()} lived"
        f" {one(_PLACES)}.",
        f"One day {name} wanted {wish}. But it {trouble}. {name} {one(_FAILURES)}, and nothing changed.",
        f"Then {friend} the {second} came by.",
    ]
    if next(draws) < 0.6:
        lines.append(
            f"{one(_ASKS).format(n=name)} So {friend} stayed with {them}. Together they {deed}, and {outcome}."
        )
        lines.append(f"That night {name} and {friend} sat side by side. {one(_HELPED)}")
    else:
        lines.append(f"{one(_PRIDE).format(n=name)} So {friend} went on. {name} sat alone, and {they} had no supper.")
        lines.append(f"In the morning {name} was still hungry. {one(_REFUSED)}")
    return "\n".join(lines)


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"
