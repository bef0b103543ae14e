"""The user's own figures and studies in a report, given on the command line by their import path."""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pandas as pd

from analysis.observations import Observations
from analysis.statistics.estimate import NotEnoughData
from analysis.studies import QUESTIONS
from analysis.studies.base import OwnStudy, Study
from grok.errors import ConfigError, GrokError
from grok.plugins import active, load, name_code

Own = Callable[[Observations], Study]

PLAIN: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
"""A name that is safe as a file's name in every folder and file system."""


def own_studies(targets: Sequence[str], folder: str) -> list[Own]:
    """Return a function for each of ``targets`` that makes its study of a store.

    A target is the import path of a function of :class:`Observations`. It returns a ``Drawing``, a list of them, or
    a ``Study``. If the store has no data for it, it returns None or raises ``NotEnoughData``.

    Raises:
        ConfigError: there is no such function.
    """
    if not targets:
        return []
    name_code(folder, targets)
    functions = {target: load(target) for target in targets}
    for target, function in functions.items():
        if not callable(function):
            raise ConfigError(f"--with {target}: expected a function of the store's observations")
        if not _takes_one(function):
            raise ConfigError(
                f"--with {target}{inspect.signature(function)} cannot be called with one argument, "
                f"the store's observations: expected def {target.rpartition('.')[2]}(observations)"
            )
    return [_asking(target, function) for target, function in functions.items()]


def _takes_one(function: Callable[..., Any]) -> bool:
    """Return whether ``function`` can be called with one argument; True if it is written in C, without a signature."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:
        return True
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    first = [p for p in parameters if p.kind in (*named, inspect.Parameter.VAR_POSITIONAL)][:1]
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p for p in parameters if p.default is inspect.Parameter.empty and p.kind not in optional]
    return bool(first) and all(p is first[0] for p in needed)


def _asking(target: str, function: Callable[[Observations], Any]) -> Own:
    def ask(observations: Observations) -> Study:
        from analysis.figures.style import in_style

        name = target.rpartition(".")[2]
        question = ((function.__doc__ or "").strip().splitlines() or [""])[0]
        try:
            with in_style():
                answer = function(observations)
        except NotEnoughData as gap:
            answer, question = None, f"{question} Not enough data: needs {gap.needs}."
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            files = {source.path for source in active().modules.values()}
            frame = next((frame for frame in reversed(frames) if frame.filename in files), frames[-1])
            place = f"{Path(frame.filename).name}:{frame.lineno}"
            kind = "" if isinstance(error, GrokError) else f"{type(error).__name__}: "
            raise ConfigError(f"--with {target} fails at {place} ({kind}{error})") from error
        if isinstance(answer, Study):
            return _fit(target, answer)
        drawn = answer if isinstance(answer, list) else [] if answer is None else [answer]
        from analysis.figures.style import Drawing

        for i, drawing in enumerate(drawn):
            if not isinstance(drawing, Drawing):
                kind = type(drawing).__name__ + (f" as element {i} of its list" if isinstance(answer, list) else "")
                raise ConfigError(
                    f"--with {target} gave a {kind}: expected an analysis.figures.style.Drawing, a list of them, or "
                    "an analysis.studies.Study"
                )
        title = name.replace("_", " ").capitalize()  # the pictures have titles of their own
        notes = [] if drawn else ["The store has no data for it."]
        scope = f"by {target}"
        return _fit(target, OwnStudy(name=name, title=title, question=question, notes=notes, scope=scope, drawn=drawn))

    return ask


def _fit(target: str, study: Study) -> Study:
    """Return ``study``, whose names and numbers are fit to be written as files.

    Raises:
        ConfigError: a name is no plain name or belongs to the report, or numbers are no table.
    """
    drawn = study.drawn if isinstance(study, OwnStudy) else []
    figures = [("figure", drawing.name, drawing.data) for drawing in drawn]
    tables = [("table", table.name, table.frame) for table in study.tables]
    files = [("file", name.removesuffix(".csv"), frame) for name, frame in study.files.items()]
    for kind, name, frame in [("section", study.name, pd.DataFrame()), *figures, *tables, *files]:
        if not isinstance(name, str) or not PLAIN.fullmatch(name):
            raise ConfigError(
                f"--with {target} gave the {kind} name {name!r}: expected a plain name, up to 100 of the characters "
                "A-Z a-z 0-9 _ -"
            )
        if not isinstance(frame, pd.DataFrame):
            raise ConfigError(
                f"--with {target} gave a {type(frame).__name__} as the numbers of the {kind} {name!r}: expected a "
                "pandas DataFrame"
            )
    if study.name in {question.name for question in QUESTIONS}:
        raise ConfigError(
            f"--with {target} gave the section name {study.name!r}, which the report uses itself: give another name"
        )
    return study
