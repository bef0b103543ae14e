"""The user's own figures and studies in a report, given on the command line by their import path."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from analysis.observations import Observations
from analysis.statistics.estimate import NotEnoughData
from analysis.studies.base import OwnStudy, Study
from grok.errors import ConfigError
from grok.plugins import activate, code_of, load

Own = Callable[[Observations], Study]


def own_studies(targets: Sequence[str], folder: str) -> list[Own]:
    """Return a function for each of ``targets`` that makes its study of a store.

    A target is the import path of a function of :class:`Observations`. It returns a ``Drawing``, a list of them, or
    a ``Study``. If the store has no data for it, it returns None or raises ``NotEnoughData``.

    Raises:
        ConfigError: there is no such function.
    """
    if not targets:
        return []
    activate(code_of(folder, targets))
    functions = {target: load({"_target_": target}) for target in targets}
    for target, function in functions.items():
        if not callable(function):
            raise ConfigError(f"--with {target}: expected a function of the store's observations")
    return [_asking(target, function) for target, function in functions.items()]


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
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(frame.filename).name}:{frame.lineno}"
            raise ConfigError(f"--with {target} fails at {place} ({type(error).__name__}: {error})") from error
        if isinstance(answer, Study):
            return answer
        drawn = answer if isinstance(answer, list) else [] if answer is None else [answer]
        from analysis.figures.style import Drawing

        if not all(isinstance(drawing, Drawing) for drawing in drawn):
            raise ConfigError(
                f"--with {target} gave a {type(answer).__name__}: expected an analysis.figures.Drawing, several, or an "
                "analysis.studies.Study"
            )
        title = drawn[0].title if len(drawn) == 1 else name.replace("_", " ").capitalize()
        notes = [] if drawn else ["The store has no data for it."]
        return OwnStudy(name=name, title=title, question=question, notes=notes, scope=f"by {target}", drawn=drawn)

    return ask
