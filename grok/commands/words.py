"""The words of a command line: what they name, how Hydra's grammar needs them, and what is refused."""

from __future__ import annotations

import functools
import itertools
import operator
import re
import textwrap
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from grok.commands.command import Parser
from grok.config import MODES
from grok.config.fields import settings_of, without_none
from grok.config.values import NO_TEXT, NUMBER, literal
from grok.errors import ConfigError, nearest

if TYPE_CHECKING:
    import pandas as pd

# The named set-ups of ``conf/``: experiments, sweeps, modes, studies, and what each one is.

NOT_NAMED: Final = {"study": ("base",)}
"""Files that others start from."""

_END: Final = re.compile(r"(?<!\bal)(?<!\b[A-Z])[.?;](?= )")
"""The end of a sentence, which no ``et al.`` and no initial is."""


CONF: Final = Path(__file__).parents[1] / "conf"
"""The folder of the settings' files."""


def setup_names(group: str) -> list[str]:
    """Return the set-ups of ``group`` as they are given (``gpt/shakespeare_char``), those of subfolders last."""
    files = sorted((CONF / group).rglob("*.yaml"), key=lambda file: (len(file.parts), file.parts))
    listed = [file.relative_to(CONF / group).with_suffix("").as_posix() for file in files]
    return [name for name in listed if name not in NOT_NAMED.get(group, ())]


def presets() -> list[str]:
    """Return the names of the language models' presets, without ``gpt/``."""
    return [name.removeprefix("gpt/") for name in setup_names("experiment") if name.startswith("gpt/")]


def setup_meaning(group: str, name: str, width: int) -> str:
    """Return what a set-up is: the first sentence of its file's comment, behind the command that it opens with."""
    lines = (CONF / group / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    comment = [line.removeprefix("#").strip() for line in itertools.takewhile(lambda line: line.startswith("#"), lines)]
    blocks = "\n".join(line for line in comment if not line.startswith("@package")).split("\n\n")
    block = next((block for block in blocks if block and not block.startswith(("grok ", "torchrun"))), "")
    text = " ".join(block.split()).removeprefix("Asks").strip()
    end = _END.search(text)
    return textwrap.shorten(text[: end.end()].rstrip(".;") if end else text.rstrip("."), width, placeholder=" ...")


# The words of a command line: what cannot be meant is refused, what people type is put as Hydra's grammar needs it.

GROUPS: Final = ("experiment", "sweep", "mode", "study")
"""Words that choose a file of ``conf/``."""


def as_overrides(words: Sequence[str]) -> list[str]:
    """Return the overrides that ``NAME=VALUE`` words mean.

    Raises:
        ConfigError: a word is no override, or chooses a file outside ``conf/``.
    """
    for word in words:
        if "=" not in word and not word.startswith("~"):  # Hydra says of it only that it misses something
            raise ConfigError(f"{word!r} is no setting: settings are given as NAME=VALUE, for example seed=7")
        _refuse_path(word)
        _refuse_other_programs(word)
    return [as_meant(word) for word in words]


def store_as_setting(words: Sequence[str]) -> list[str]:
    """Return ``words`` with ``--store S`` put as the setting that it is.

    Raises:
        ConfigError: it has no value.

    >>> store_as_setting(["-m", "--store", "results/a", "seed=1,2"])
    ['-m', 'seed=1,2', 'store.path=results/a']
    >>> store_as_setting(["--store=my, store"])
    ['store.path="my, store"']
    """
    parser = Parser(prog="grok run", add_help=False, allow_abbrev=False)
    parser.add_argument("--store", type=Path)
    given, rest = parser.parse_known_args(list(words))
    return rest if given.store is None else [*rest, f"store.path={literal(given.store)}"]


_MEANT: Final = {"seeds": "seed", "store": "store.path"}
"""Groups of settings that people give a value to, and the setting that they mean."""
_RANGE: Final = re.compile(r"(\d{1,18})(?:-|\.\.|:)(\d{1,18})")


def _refuse_other_programs(word: str) -> None:
    """Refuse ranges and names as other programs write them, with what does the same here."""
    name, _, value = word.partition("=")
    if name in _MEANT and value and not value.startswith("{"):
        raise ConfigError(f"{word}: {name} is a group of settings, did you mean '{_MEANT[name]}={value}'?")
    if hint_of(name) is int and (typed := _RANGE.fullmatch(value)):
        first, last = int(typed[1]), int(typed[2])
        raise ConfigError(
            f"{word}: a range is {name}=range({first},{last + 1}), without its end; `grok sweep` trains all"
        )


def _refuse_path(word: str) -> None:
    """Refuse a set-up from outside ``conf/``: Hydra would take any path for a name, and fails at what is no text.

    Several named sweeps are refused, too.
    """
    group, equals, name = word.lstrip("+~").partition("=")
    group = group.partition("@")[0]
    if not equals or group not in GROUPS:
        return
    if ".." in name or name.startswith(("/", "~")):
        raise ConfigError(f"{group}={name} is a path: expected a name below conf/{group}/")
    if group == "sweep" and set(name) & set(",("):  # Hydra would plan the first values of both files
        raise ConfigError(f"sweep={name}: one named sweep per command, expected sweep=NAME")
    if NO_TEXT.fullmatch(name):
        raise ConfigError(f"{group}={name} is not known: expected one of {', '.join(setup_names(group))}")


def chosen_mode(words: Sequence[str]) -> str:
    """Return the mode that a command line chooses, by itself or by its preset."""
    gpt = any(word.lstrip("+") == "mode=gpt" or word.lstrip("+").startswith("experiment=gpt/") for word in words)
    return "gpt" if gpt else "arithmetic"


def as_meant(word: str) -> str:
    """Return an override as Hydra's grammar needs it where what people type means something else to it.

    >>> as_meant("save=init,final"), as_meant("seeds.layers={blocks.1:7}")
    ("save='init,final'", '++seeds.layers={blocks.1:7}')
    >>> as_meant("seeds.layers.blocks.1=range(0,16)")
    '++seeds.layers.blocks.1=range(0,16)'
    >>> as_meant("task.operation=x^2+y^2,x+y")
    "task.operation='x^2+y^2','x+y'"
    >>> as_meant("store.path=2024_11_21"), as_meant("train.steps=2_000")
    ('store.path="2024_11_21"', 'train.steps=2_000')
    """
    name, equals, value = word.partition("=")
    if not equals:
        return word
    if name == "save" and "," in value and value.isascii() and "'" not in value and '"' not in value:
        return f"save='{value}'"  # not a sweep: what is kept is no part of a run
    if name == "task.operation" and "^" in value and not set(value) & set("'\"()[]{}"):
        return f"{name}=" + ",".join(f"'{operation}'" for operation in value.split(","))
    if hint_of(name) is str and not set(value) & set("'\"()[]{}\\"):  # 2024_11_21 is a name, and a number to Hydra
        odd = re.compile(rf"(?i){NUMBER}|.*[^ -~].*")  # nor has its grammar letters beyond ASCII
        word = f"{name}=" + ",".join(literal(text) if odd.fullmatch(text) else text for text in value.split(","))
    if any(name == known or name.startswith(f"{known}.") for known in _maps()):
        return f"++{word}"  # a map takes new keys
    return word


def as_value(name: str, text: str) -> str:
    """Return text for a setting as Hydra's grammar takes it: for a number or a flag it says one, else it is text.

    >>> as_value("optim.lr", "1e-3"), as_value("store.path", "1e-3")
    ('1e-3', '"1e-3"')
    """
    hint = hint_of(name)
    items = typing.get_args(hint) if typing.get_origin(hint) is list else (hint,)
    return text if set(items) <= {int, float, bool} and NO_TEXT.fullmatch(text) else literal(text)


def hint_of(name: str) -> Any:
    """Return the type of a setting, or of an entry of a map, without ``None``; None where it is not known."""
    name = name.lstrip("+")
    return _hints().get(name) or next(
        (typing.get_args(hint)[1] for known, hint in _maps().items() if name.startswith(f"{known}.")), None
    )


@functools.cache
def _hints() -> dict[str, Any]:
    return {name: without_none(hint) for mode in MODES.values() for name, (hint, _) in settings_of(mode).items()}


@functools.cache
def _maps() -> dict[str, Any]:
    return {name: hint for name, hint in _hints().items() if typing.get_origin(hint) is dict}


# Chooses rows of a table by words such as ``seed=8``, ``class=super`` and ``generalised<2000``.

_BOUND: Final = re.compile(r"([^<>=]+)(<=|>=|=|<|>)(.+)")
_TESTS: Final = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge, "=": operator.eq}
MOST_NAMED: Final = 16
"""Largest number of columns that a refusal lists."""
IDS: Final = ("run", "design_id")
"""Columns of identifiers, which ``=`` compares by their beginning."""


def is_filter(word: str) -> bool:
    """Return whether ``word`` bounds a column."""
    return _BOUND.fullmatch(word) is not None


def matching(frame: pd.DataFrame, words: Sequence[str]) -> pd.Series:
    """Return which rows of ``frame`` satisfy all ``words``.

    A word is a bound on a column, which the beginning of its name gives, or text that some cell of the row contains.
    A cell without a value satisfies no bound. Text is compared without case; ``=`` also accepts one word of a cell.

    Raises:
        ConfigError: no column has this name, or a bound other than ``=`` is not on a number.
    """
    import pandas as pd

    kept = pd.Series(True, index=frame.index)
    for word in words:
        bound = _BOUND.fullmatch(word)
        if bound is None:
            texts = frame.astype("string").fillna("")
            kept &= texts.apply(lambda column, word=word: column.str.contains(word, case=False, regex=False)).any(
                axis=1
            )
        else:
            kept &= _bounded(frame, *bound.groups())
    return kept


def column_named(frame: pd.DataFrame, name: str) -> str:
    """Return the column of ``frame`` that ``name`` means: the whole name, or the first that begins with it.

    Raises:
        ConfigError: there is none.
    """
    names = {str(column).lower().replace(" ", "_"): str(column) for column in frame}
    typed = name.strip().lower()
    begins = (column for key, column in names.items() if typed and key.startswith(typed))
    meant = names.get(typed) or next(begins, None)
    if meant is None:
        some = ", ".join([*names][:MOST_NAMED]) + (", ..." if len(names) > MOST_NAMED else "")
        raise ConfigError(f"there is no column {name!r}{nearest(typed, names)}: expected one of {some}")
    return meant


def _bounded(frame: pd.DataFrame, name: str, sign: str, value: str) -> pd.Series:
    import pandas as pd

    meant = column_named(frame, name)
    column = frame[meant]
    number = pd.to_numeric(value.replace(",", ""), errors="coerce")
    if pd.api.types.is_numeric_dtype(column) and pd.notna(number):
        test: pd.Series = _TESTS[sign](column, number)
        return test.fillna(False).astype(bool)
    if sign != "=":
        known = "a number" if pd.isna(number) else "= and a text: the column has no numbers"
        raise ConfigError(f"{name}{sign}{value}: expected {known}")
    texts, wanted = column.astype("string").fillna("").str.lower(), value.lower()
    if meant in IDS:
        return texts.str.split(", ").map(lambda ids: any(one.startswith(wanted) for one in ids)).astype(bool)
    return (texts == wanted) | texts.str.split(r"[,\s]+").map(lambda parts: wanted in parts).astype(bool)
