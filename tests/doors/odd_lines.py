"""Odd command lines: valid ones, harmed by what the command's own parser and settings know."""

from __future__ import annotations

import argparse
import importlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from grok import run
from grok.__main__ import COMMANDS
from grok.config import MODES
from grok.config.fields import settings_of
from sweeps.search.config import Studied
from tests.doors.conftest import TINY

ODD: Final = (
    "", " ", "nan", "inf", "-inf", "-1", "0", "-0.0", "1e-400", "1e12", "1000000000000", "9223372036854775807",
    "9223372036854775808", "1" * 400, "0x10", "1_000", "7.5", "true", "null", "???", "None",
    "x" * 300, "x" * 5000, "é日本", "a\nb", "\t", "\udcff", "a\udcfeb",
    "'", '"', "\\", "{", "[", "(", ",", "=", "~", "$",
    "%s", "{0}", "$x^{$", "*", "-", "--", "-h", "--nope", "S", "L", "C", "hf", "text.txt", "odd.json", "missing",
    "missing/deep/x", "S/runs", "S/runs/x", "S/tmp/x", "text.txt/x", "..", "../..", "../../precious", "/dev/null",
    "/dev/null/x", "/proc/self/mem", "/", "~/x", "${x}", "${oc.env:HOME}", "${seed}", "${now:%Y}", "a/${x}/b",
    "[1,2]", "[[1,[2]],{a:b}]", "{a:{b:1}}", "{a:1", "range(0,1e12)", "range(0,1000000000000)", "range(0,5,0)",
    "range(5,0)", "range(0,1,1e-9)", "range(0,inf)", "choice(a,b)", "choice()", "glob(*)", "glob(*,exclude=x)",
    "interval(0,1)", "sort(3,1)", "shuffle(1,2)", "tag(a,1)", "int(x)", "1,2,3", "1,,2", "a,b", "0:10", "5:1", "x=y",
    "a=b;c=d", "a=b", "val=text.txt", "file:///x", "postgresql://me:se/cret@host/db", "sqlite:///S", "s3://bucket/x",
    "ulp,ulp", "split+split", "0", "1", "2", "3",
)  # fmt: skip
"""Values that nobody means, beside some that somebody could."""

SMALL: Final = ("model.layers=1", "model.d_model=16", "model.heads=2", "model.context=8")
"""A small language model."""


@dataclass(frozen=True)
class Line:
    """A valid command line."""

    words: tuple[str, ...]
    works: bool = False
    """Whether it trains or computes: then it may take as long as it is told to, and is interrupted."""
    last: tuple[str, ...] = ()
    """Words put behind the harmed ones, so that nothing is trained."""
    weight: int = 4


PLANNED: Final = ("dry_run=true",)


def lines(run_id: str, language: str) -> list[Line]:
    """Return valid command lines of every command, for the stores of :class:`World`."""
    tiny, gpt = TINY, ("mode=gpt", "experiment=gpt/shakespeare_char", "data.path=C")
    return [
        Line(("run", "seed=3", *tiny, "--store", "N"), last=PLANNED, weight=10),
        Line(("run", "experiment=quickstart", "store.path=S"), last=PLANNED),
        Line(("run", *gpt, *SMALL), last=PLANNED, weight=8),
        Line(("run", "seed=3", *tiny, "executor=inline", "store.path=N"), works=True),
        Line(("run", "--again", run_id, "--store", "S", "device=cpu"), works=True),
        Line(("run", "--help", "lr"), weight=1),
        Line(("sweep", "seed=range(0,3)", "optim.lr=1e-3,3e-3", *tiny), last=PLANNED, weight=10),
        Line(("sweep", "sweep=census"), last=PLANNED, weight=2),
        Line(("sweep", *gpt, *SMALL, "seed=1,2"), last=PLANNED, weight=4),
        Line(("search", "study=quickstart", "study.trials=4", "study.space.optim.lr={low:1e-4,high:1e-2}"),
             last=PLANNED, weight=8),
        Line(("layers", "--recipient", "0", "--donor", "1", *tiny), last=PLANNED, weight=6),
        Line(("layers", "--recipient", "0", "--donor-init", "5", "--factors", "a=blocks;b=head", *tiny), last=PLANNED),
        Line(("branch", "--store", "S", "--best", "1", "--random", "1", "--at", "3", *tiny), last=PLANNED, weight=6),
        Line(("repeat", "--store", "S", "--best", "1", "--kinds", "ulp,order"), last=PLANNED, weight=6),
        Line(("report", "S", "--out", "R"), works=True, weight=2),
        Line(("study", "census", "S", "--out", "R"), works=True),
        Line(("show", run_id, "--store", "S", "--out", "x.png")),
        Line(("store", "status", "S"), weight=3),
        Line(("store", "verify", "S"), weight=3),
        Line(("store", "compact", "S"), weight=3),
        Line(("store", "migrate", "S"), weight=2),
        Line(("store", "restore", "S"), weight=3),
        Line(("store", "merge", "S", "T", "--into", "M"), weight=6),
        Line(("prepare", "text", "--input", "text.txt", "--tokenizer", "char", "--out", "P", "--workers", "1"),
             weight=8),
        Line(("prepare", "text", "--input", "text.txt", "--tokenizer", "bpe", "--vocab-size", "300", "--out", "P",
              "--workers", "1")),
        Line(("plan", *gpt[1:], "--devices", "2", "--mfu", "0.3"), weight=8),
        Line(("find", "lr", *gpt[1:], *SMALL, "--steps", "10", "--out", "F"), works=True),
        Line(("find", "batch_size", *gpt[1:], *SMALL, "--largest", "2"), works=True),
        Line(("evaluate", language, "--store", "L", "--limit", "40", "--out", "e.json"), works=True, weight=6),
        Line(("generate", language, "--store", "L", "--tokens", "3", "--prompt", "the"), works=True, weight=8),
        Line(("hf", "export", language, "--store", "L", "--out", "H"), works=True),
        Line(("hf", "import", "hf", "--data", "C", "--store", "N"), works=True),
        Line(("completion", "bash"), weight=2),
        Line(("completion", "--for", "grok run task."), weight=3),
        Line(("--version",), weight=1),
    ]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One odd command line."""

    number: int
    words: tuple[str, ...]
    works: bool
    encoding: str
    cut: int | None

    @staticmethod
    def of(number: int, run_id: str, language: str) -> Case:
        """Return case ``number``."""
        chance = random.Random(f"case {number}")
        every = lines(run_id, language)
        line = chance.choices(every, [line.weight for line in every])[0]
        words = list(line.words)
        for _ in range(chance.choice((1, 1, 2, 3))):
            chance.choice(HARMS)(words, chance)
        encoding = "ascii" if chance.random() < 0.15 else "utf-8"
        cut = chance.randrange(3) if chance.random() < 0.1 else None
        return Case(number, (*words, *line.last), line.works, encoding, cut)

    def __str__(self) -> str:
        shown = [repr(word if len(word) <= 60 else f"{word[:50]}...({len(word)})") for word in self.words]
        return (
            f"case {self.number} ({self.encoding}{'' if self.cut is None else f', cut {self.cut}'}): {' '.join(shown)}"
        )


def odd(chance: random.Random) -> str:
    return chance.choice(ODD)


def settings_for(words: Sequence[str]) -> list[str]:
    """Return names of settings that the command of ``words`` may be given."""
    names = [*settings_of(MODES["gpt" if any("gpt" in w for w in words) else "arithmetic"]), "experiment", "sweep"]
    names += ["mode", "study", "hydra.run.dir", "hydra.sweep.dir", "hydra.job.name", "nonsense", "model", "task.x"]
    if words[:1] == ["search"]:
        names = [*names, *settings_of(Studied), "study.space", "study.space.optim.lr", "study.space.nope"] * 2
    return names


def options_of(words: Sequence[str]) -> list[argparse.Action]:
    """Return the options of the command's own parser."""
    entry = next((group[words[0]] for group in COMMANDS.values() if words and words[0] in group), None)
    if entry is None:
        return []
    door = importlib.import_module(entry.module)
    parser = door.parser() if hasattr(door, "parser") else None
    if parser is None:
        return [argparse.Action([option], "x") for option in (*getattr(door, "OPTIONS", ()), *run.OPTIONS)]
    actions = list(parser._actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            actions += next((p._actions for name, p in action.choices.items() if name in words), [])
    return [action for action in actions if action.option_strings]


def change_value(words: list[str], chance: random.Random) -> None:
    """A value behind = becomes odd."""
    places = [i for i, word in enumerate(words) if "=" in word]
    if places:
        place = chance.choice(places)
        words[place] = f"{words[place].partition('=')[0]}={odd(chance)}"


def change_word(words: list[str], chance: random.Random) -> None:
    if len(words) > 1:
        words[chance.randrange(1, len(words))] = odd(chance)


def add_setting(words: list[str], chance: random.Random) -> None:
    sign = chance.choice(("", "", "", "", "+", "++", "~"))
    words.insert(chance.randrange(1, len(words) + 1), f"{sign}{chance.choice(settings_for(words))}={odd(chance)}")


def add_option(words: list[str], chance: random.Random) -> None:
    options = options_of(words)
    if options:
        action = chance.choice(options)
        name = chance.choice(action.option_strings)
        if name in ("--watch", "-h", "--help") and chance.random() < 0.9:
            return
        values = [str(choice) for choice in action.choices or ()]
        value = chance.choice(values) if values and chance.random() < 0.5 else odd(chance)
        at = chance.randrange(1, len(words) + 1)
        words[at:at] = chance.choice(([name], [name, value], [name, value], [f"{name}={value}"]))


def change_option(words: list[str], chance: random.Random) -> None:
    """The value behind an option becomes odd."""
    places = [i + 1 for i, word in enumerate(words[:-1]) if word.startswith("--")]
    if places:
        words[chance.choice(places)] = odd(chance)


def drop(words: list[str], chance: random.Random) -> None:
    if len(words) > 1:
        del words[chance.randrange(1, len(words))]


def double(words: list[str], chance: random.Random) -> None:
    words.insert(chance.randrange(1, len(words) + 1), chance.choice(words))


def move(words: list[str], chance: random.Random) -> None:
    word = words.pop(chance.randrange(len(words)))
    words.insert(chance.randrange(len(words) + 1), word)


def insert(words: list[str], chance: random.Random) -> None:
    words.insert(chance.randrange(len(words) + 1), odd(chance))


Harm = Callable[[list[str], random.Random], None]
HARMS: Final[tuple[Harm, ...]] = (
    change_value, change_value, change_value, change_word, change_word, add_setting, add_setting, add_setting,
    add_option, add_option, change_option, change_option, drop, double, move, insert,
)  # fmt: skip
