"""``python -m tests.doors.fuzz [--cases N] [--first K]``: every command of ``grok`` with odd arguments.

A case is a valid command line, harmed once to three times by what the command's own parser and
settings know: a value becomes an odd one, an option or a setting is added, a word goes, comes twice
or moves. Case K is the same wherever it runs. The command runs in a fork of this process, in a
folder of its own; then everything that was promised is checked: see :func:`problems`.

Prints one line for each case that breaks a promise. Exit status 0: none did.
"""

import argparse
import errno
import faulthandler
import importlib
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO, cast
from unittest.mock import patch

from grok.__main__ import COMMANDS
from grok.__main__ import main as grok
from grok.config import MODES
from grok.config.fields import settings_of
from grok.store import open_store
from grok.sweeps.search.config import Studied
from tests.doors.conftest import SMALL_MODEL, TINY
from tests.gpt.conftest import prepare_text, text_of
from tests.store.hostile import outside_state

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
        Line(("report", "S", "--only", "census", "--out", "R"), works=True),
        Line(("show", run_id, "--store", "S")),
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
    def of(number: int, run_id: str, language: str) -> "Case":
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
        return [argparse.Action([option], "x") for option in ("--store", "--again", "--multirun", "--cfg", "--help")]
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


LIMIT: Final = 60
"""Seconds of processor time after which a command that only plans is held to be endless."""

KEPT: Final = ("S", "T", "L")
"""Stores whose runs must all be there afterwards."""


class World:
    """A folder with stores, a corpus, a text and something precious, of which every case gets a copy."""

    def __init__(self, place: Path) -> None:
        self.here = place / "world"
        self.place = place
        inside = self.here / "a" / "b"
        inside.mkdir(parents=True)
        (self.here / "precious").mkdir()
        (self.here / "precious" / "file").write_text("precious")
        (inside / "text.txt").write_text(text_of(300))
        (inside / "odd.json").write_text('[{"a": null}]')
        prepare_text(inside, text_of(300))
        (inside / "corpus").rename(inside / "C")
        train = [*TINY, "executor=inline", "checkpoint.keep=true"]
        gpt = [*SMALL_MODEL, "data.path=C", "model.bias=true", "train.steps=4", "train.batch_size=2", "eval.every=4"]
        gpt += ["optim.warmup_steps=1", "save=final", "executor=inline"]
        for words in (
            ["sweep", "seed=range(0,3)", *train, "store.path=S"],
            ["sweep", "seed=range(2,4)", *train, "store.path=T"],
            ["run", *gpt, "store.path=L"],
        ):
            status, said = call(words, inside)
            assert status == 0, said
        (self.language,) = open_store(inside / "L").run_ids()
        self.run = sorted(open_store(inside / "S").run_ids())[0]
        status, said = call(["hf", "export", self.language, "--store", "L", "--out", "hf"], inside)
        assert status == 0, said
        self.runs = {name: open_store(inside / name).run_ids() for name in KEPT}


def call(words: Sequence[str], folder: Path, *, encoding: str = "utf-8", cut: int | None = None) -> tuple[int, str]:
    """Run a command line in ``folder``; return its exit status and what it printed to either stream.

    ``encoding`` is the terminal's; its reader leaves after ``cut`` writes (None: never).
    """
    said = io.BytesIO()
    out = io.TextIOWrapper(said, encoding=encoding, write_through=True)
    stdout = out if cut is None else cast(TextIO, _Pipe(out, cut))
    loud = warnings.catch_warnings(action="default")
    with (
        chdir(folder),
        patch.object(sys, "argv", ["grok", *words]),
        redirect_stdout(stdout),
        redirect_stderr(out),
        loud,
    ):
        status = grok(list(words))
    return status, said.getvalue().decode(encoding)


class _Pipe:
    """A stream whose reader leaves after some writes."""

    def __init__(self, stream: io.TextIOWrapper, cut: int) -> None:
        self.stream, self.left = stream, cut
        self.nowhere = os.open(os.devnull, os.O_WRONLY)

    def write(self, text: str) -> int:
        self.left -= 1
        if self.left < 0:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        return self.stream.write(text)

    def fileno(self) -> int:
        """Return that of a file of its own: what is printed from now on is given up by pointing it elsewhere."""
        return self.nowhere

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def named_paths(case: Case, folder: Path) -> tuple[list[str], list[str]]:
    """Return the places that the words of a case name, and of those the ones that hold the case itself."""
    pieces = [piece for word in case.words for piece in (word, *word.split("=", 1)[1:], *word.split("=", 2)[2:])]
    pieces += [piece.strip("'\"") for piece in pieces]
    places = [
        os.path.normpath(f"{folder}/{piece}" if not piece.startswith("/") else piece)
        for piece in pieces
        if piece and "\0" not in piece
    ]
    above = [place for place in places if f"{folder}/".startswith(place.rstrip("/") + "/")]
    return [place for place in places if place not in above], above


def problems(case: Case, world: World, folder: Path, before: dict[str, Any], status: int, said: str) -> Iterator[str]:
    """Yield the promises that a case broke: no traceback, one line for a refusal, nothing else changed, no row lost."""
    if "Traceback (most recent" in said:
        yield "prints a traceback"
    if status not in (0, 1, 2):
        yield f"exit status {status}"
    rest = [line for line in said.splitlines() if line and not line.startswith(("warning: ", "Note: "))]
    errors = [line for line in rest if line.startswith("error: ")]
    if status == 2 and len(case.words) > 1:  # else the refusal is the list of commands or the command's help
        if len(errors) != 1:
            yield f"{len(errors)} lines of refusal"
        elif rest[-1] != errors[0]:
            yield "the refusal is not the last line"
        elif len(errors[0]) > 1500:
            yield f"a refusal of {len(errors[0])} characters"
    if "://me:se/cret" in said:
        yield "shows a password"
    root = folder.parents[1]
    named, above = named_paths(case, folder)
    allowed = [*(str(folder / name) for name in ("S", "T", "L", "results", "N")), *named]
    after = outside_state(root)
    for name in after.keys() | before.keys():
        path = str(root / name)
        asked = str((root / name).parent) in above or any(path == a or path.startswith(a + "/") for a in allowed)
        if name in after and before.get(name) != after[name] and not asked and not (root / name).is_dir():
            yield f"wrote {os.path.relpath(path, folder)}"
        if name not in after and not any(path.startswith(str(folder / kept) + "/") for kept in KEPT):
            yield f"removed {os.path.relpath(path, folder)}"
    for name, runs in world.runs.items():
        try:
            lost = runs - open_store(folder / name).run_ids()
        except Exception as error:
            yield f"{name} cannot be read: {error}"
        else:
            if lost:
                yield f"{name} lost {sorted(lost)}"


def try_case(case: Case, world: World, folder: Path) -> list[str]:
    """Run a case in this process, in a copy of the world at ``folder``; return what it broke."""
    shutil.copytree(world.here, folder, symlinks=True)
    inside = folder / "a" / "b"
    before = outside_state(folder)
    try:
        status, said = call(case.words, inside, encoding=case.encoding, cut=case.cut)
    except Exception:
        return [f"raised {traceback.format_exc()}"]
    broken = list(problems(case, world, inside, before, status, said))
    return [*broken, f"(exit {status}) said: {said[-1500:]}"] if broken else []


def try_apart(case: Case, world: World, folder: Path) -> list[str]:
    """Run a case in a process of its own, with bounds on its time and memory; return what it broke."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reading)
        os.setsid()
        with (world.place / "last.txt").open("w") as trace:
            faulthandler.enable(trace)
            resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
            resource.setrlimit(resource.RLIMIT_CPU, (LIMIT * 2, LIMIT * 2 + 5))
            if case.works:
                signal.signal(signal.SIGPROF, lambda *_: os.kill(os.getpid(), signal.SIGINT))
                signal.setitimer(signal.ITIMER_PROF, 6)
            else:
                faulthandler.register(signal.SIGXCPU, trace)
                signal.signal(signal.SIGPROF, _too_long)
                signal.setitimer(signal.ITIMER_PROF, LIMIT)
            broken = ["no answer"]
            try:
                broken = try_case(case, world, folder)
            except BaseException:
                broken = [f"raised {traceback.format_exc()}"]
            finally:
                with os.fdopen(writing, "w") as pipe:
                    json.dump(broken, pipe)
                os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    _, status = os.waitpid(pid, 0)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    broken: list[str] = (
        json.loads(answer) if answer else [f"ended with {status}, {(world.place / 'last.txt').read_text()[-1500:]}"]
    )
    return broken


class TooLong(BaseException):
    """A command that only plans, and does not end."""


def _too_long(*_: object) -> None:
    raise TooLong


def main() -> int:
    """Try cases and print what they broke."""
    parser = argparse.ArgumentParser(prog="python -m tests.doors.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    failures = 0
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        world = World(Path(place))
        for name in ("torch", "grok.analysis.report", "grok.sweeps.search.driver", "grok.gpt.generate"):
            importlib.import_module(name)
        for number in range(given.first, given.first + given.cases):
            case = Case.of(number, world.run, world.language)
            folder = Path(place) / f"case-{number}"
            broken = try_apart(case, world, folder)
            shutil.rmtree(folder, ignore_errors=True)
            if broken:
                failures += 1
                print(f"{case}\n    " + "\n    ".join("\n".join(broken).splitlines()), flush=True)
            if number % 50 == 0:
                print(f"at {number}", flush=True)
    print(f"{given.cases} cases, {failures} broke a promise")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
