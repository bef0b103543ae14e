"""The report as data: the answered questions, what the others need, facts and origin, the user's own figures."""

from __future__ import annotations

import re
import shlex
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from grok.analysis.observations import (
    Observations,
    describe_task,
    differing_settings,
    hashes_in_words,
    how_many,
    in_words,
    settings_words,
    sort_key,
    varying_columns,
    without_repetition,
)
from grok.analysis.proposals import confirmation, given_again, proposal, usual
from grok.analysis.purposes import absent, asked, roles
from grok.analysis.statistics.estimate import NotEnoughData
from grok.analysis.studies import QUESTIONS, Missing
from grok.analysis.studies.base import OwnStudy, Study
from grok.analysis.studies.gpt import describe_language_model
from grok.config.values import literal
from grok.errors import ConfigError, GrokError
from grok.plugins import active, load, name_code
from grok.streams import STREAMS, derive_seed

# The facts at the top of the page: task, model, training, conditions, dates, code and commands of the runs.

MOST_VALUES: Final = 4
"""Largest number of values of one fact that the page names; it counts the rest."""
MOST_COMMANDS: Final = 3


@dataclass(frozen=True)
class Fact:
    """One line of the heading."""

    name: str
    text: str
    is_command: bool = False


def heading(observations: Observations) -> list[Fact]:
    """Return the facts in the page's order; an empty list for an empty store."""
    facts = []
    rows = observations.arithmetic
    if len(rows):
        facts = [
            Fact("Task", _each(rows, describe_task)),
            Fact("Model", _each(rows, describe_model)),
            Fact("Training", describe_training(rows)),
            Fact("Conditions", _conditions(rows)),
        ]
    if len(observations.gpt):
        presets = observations.gpt["config.experiment"].fillna("no preset").unique()
        facts.append(Fact("Language models", _some([str(p) for p in sorted(presets)])))
        facts.append(
            Fact("Their model and training", _some(_different(observations.gpt, describe_language_model), "; "))
        )
    if len(observations.all_runs):
        facts.append(Fact("Trained", _dates(observations)))
    return facts + [Fact("Command", command, is_command=True) for command in _commands(observations)]


def describe_model(row: pd.Series) -> str:
    """Return the model of an arithmetic run in words."""
    layers, width, inner = (row[f"config.model.{name}"] for name in ("layers", "d_model", "d_ff"))
    norm = {"none": "no LayerNorm", "pre": "LayerNorm before each part", "post": "LayerNorm after each part"}
    return (
        f"transformer of {int(layers)} layer{'s' if layers > 1 else ''}, width {int(width)}, "
        f"{int(row['config.model.heads'])} heads, MLP {int(4 * width if pd.isna(inner) else inner)}, "
        f"{str(row['config.model.activation']).upper()}, {norm.get(str(row['config.model.norm']), '')}"
    )


def describe_training(rows: pd.DataFrame) -> str:
    """Return optimiser, batch and length of arithmetic runs in words, with every value that they take."""

    def values(setting: str) -> str:
        ordered = _ordered(rows[f"config.{setting}"])
        return _some([f"{v:,}" if isinstance(v, int | np.integer) else _value(v) for v in ordered])

    return (
        f"AdamW, learning rate {values('optim.lr')}; weight decay {values('optim.weight_decay')}; "
        f"batch {values('train.batch_size')}; {values('train.steps')} steps"
    )


def run_labels(runs: pd.DataFrame) -> dict[str, str]:
    """Return a label for each run: its master seed, stream seeds that it does not derive, settings that vary."""
    if runs.empty:
        return {}
    labels = [f"seed {seed}" for seed in runs["seed"]]
    for stream in (s for s in STREAMS if s != "eval"):
        column = f"seed_{stream}"
        if column not in runs:
            continue
        for i, (seed, value) in enumerate(zip(runs["seed"], runs[column], strict=True)):
            if not pd.isna(value) and int(value) != derive_seed(int(seed), stream):
                labels[i] += f", {stream} {int(value)}"
    for mode in runs["mode"].unique():
        here = np.flatnonzero(runs["mode"] == mode)
        for column in varying_columns(runs.iloc[here]):
            for place, value in zip(here, runs[column].iloc[here], strict=True):
                labels[place] += f", {column.rpartition('.')[2]} {_value(value)}"
    return dict(zip(runs["run_id"].astype(str), labels, strict=True))


def _conditions(rows: pd.DataFrame) -> str:
    varying = varying_columns(rows)
    if varying:
        count = len(rows[varying].drop_duplicates())
        parts = [
            f"{name} {_some([_value(v) for v in _ordered(rows[f'config.{name}'])])}"
            for name in without_repetition(column.removeprefix("config.") for column in varying)
        ]
        return f"{count} conditions: {'; '.join(parts)}"
    changed = differing_settings(rows.iloc[0])
    return f"one; {len(changed)} settings differ from the diary's regime" if changed else "one, the diary's regime"


def _ordered(column: pd.Series) -> list[object]:
    return sorted(column.drop_duplicates(), key=sort_key)


def _value(value: object) -> str:
    if value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)):
        return "none"
    return f"{value:g}" if isinstance(value, float) else in_words(value)


def _each(rows: pd.DataFrame, words: Callable[[pd.Series], str]) -> str:
    """Return the distinct descriptions of the rows, joined."""
    return _some(_different(rows, words), "; ")


def _different(rows: pd.DataFrame, words: Callable[[pd.Series], str]) -> list[str]:
    settings = [
        c for c in rows if str(c).startswith(("config.task.", "config.model.", "config.optim.", "config.train."))
    ]
    kinds = rows.drop_duplicates([c for c in settings if rows[c].notna().any()])
    return list(dict.fromkeys(words(row) for _, row in kinds.iterrows()))


def _some(words: list[str], between: str = ", ") -> str:
    shown = between.join(words[:MOST_VALUES])
    return shown if len(words) <= MOST_VALUES else f"{shown}{between}and {len(words) - MOST_VALUES:,} more"


def _dates(observations: Observations) -> str:
    when = pd.to_datetime(observations.all_runs["started_at"]).dropna()
    if when.empty:
        return "unknown"
    first, last = (f"{t:%Y-%m-%d}" for t in (when.min(), when.max()))
    return first if first == last else f"{first} to {last}"


def _commands(observations: Observations) -> list[str]:
    """Return the commands of the latest sweeps, latest first, with the store's present path."""
    commands = [
        given_again(sweep["argv"], observations.path) for sweep in reversed(observations.sweeps) if sweep.get("argv")
    ]
    return list(dict.fromkeys(commands))[:MOST_COMMANDS]


# The origin of a report's numbers: counts of runs, their statuses, and the numerics, devices and code of the runs.


@dataclass
class Provenance:
    """Counts over all rows of the store."""

    runs: int
    trajectories: int
    evaluations: int
    statuses: dict[str, int] = field(default_factory=dict)
    mixes: dict[str, dict[str, int]] = field(default_factory=dict)
    """Number of runs by value, by the column's name in words."""
    hours: float = 0.0
    dirty: int = 0
    notes: list[str] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)
    """A sentence for each design with planned runs that are not in the store yet."""

    def as_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return dict(vars(self))


MIXES = {
    "numerics": "numerics tags",
    "torch_version": "torch versions",
    "device": "devices",
    "host": "hosts",
    "grok_version": "grok versions",
    "git_commit": "commits",
    "own_code": "own code",
}


def provenance(observations: Observations) -> Provenance:
    """Return the provenance of everything in the store."""
    runs = observations.all_runs
    summary = Provenance(
        runs=len(runs),
        trajectories=int(runs["trajectory_id"].nunique()),
        evaluations=len(observations.curves),
        statuses=_counts(runs["status"]),
        hours=float(runs["seconds"].fillna(0).sum()) / 3600,
        dirty=int(runs["git_dirty"].fillna(False).astype(bool).sum()),
    )
    summary.pending = pending(observations)
    for column, words in MIXES.items():
        if column in runs and (column != "own_code" or runs[column].notna().any()):
            summary.mixes[words] = _counts(runs[column].map(hashes_in_words) if column == "own_code" else runs[column])
    if len(summary.mixes.get("numerics tags", {})) > 1:
        summary.notes.append(
            "The runs were computed with several numerics tags: equal seeds need not give equal bits between them."
        )
    summary.notes += _about_designs(observations)
    if others := [f"{n:,} {status}" for status, n in summary.statuses.items() if status != "completed"]:
        summary.notes.append(f"Of {summary.runs:,} runs, {', '.join(others)}.")
    if summary.dirty:
        summary.notes.append(f"Runs from uncommitted code: {summary.dirty:,}.")
    return summary


@dataclass(frozen=True)
class Unfinished:
    """A design with planned runs that are not stored."""

    kind: str
    command: str
    """The command that planned it; empty if no record names the design."""
    missing: int
    planned: int

    @property
    def text(self) -> str:
        """How many of its runs are missing."""
        return f"{self.missing:,} of {self.planned:,} planned runs are not in the store yet"


def unfinished(observations: Observations) -> list[Unfinished]:
    """Return each design with runs that are neither stored nor given up, in the order of planning."""
    commands = {
        design_id: given_again(sweep["argv"], observations.path)
        for sweep in observations.sweeps
        if sweep.get("argv")
        for design_id in sweep.get("config", {}).get("designs", ())
    }
    return [
        Unfinished(of.kind, commands.get(of.design_id, ""), len(of.missing), of.planned)
        for of in observations.once(roles).missing
    ]


def pending(observations: Observations) -> list[str]:
    """Return a sentence for each design with planned runs that are not in the store yet."""
    return [f"{of.text}: {of.command or f'a design of kind {of.kind}'}." for of in unfinished(observations)]


def _about_designs(observations: Observations) -> list[str]:
    """Return what is not known, or known only from a reconstruction, of the purposes of all runs."""
    purposes = observations.once(roles)
    again = purposes.rows[purposes.rows["origin"] == "reconstructed"]["run_id"]
    reconstructed = again[again.isin(observations.all_runs["run_id"])].nunique()
    counts = purposes.about() | {
        "With designs that were reconstructed after their training (origin=reconstructed)": reconstructed
    }
    return [f"{words}: {how_many(number, 'run')}." for words, number in counts.items() if number]


def _counts(column: pd.Series) -> dict[str, int]:
    return {str(k): int(v) for k, v in column.fillna("unknown").value_counts().items()}


# The first screen: the store's question, its answer in a sentence, and the next step.

FEW_SEEDS: Final = 12
"""Fewer seeds than this answer no further question: more come first."""
FEWEST_DONE: Final = 3
"""If fewer seeds than this generalised, longer runs come first."""
MOST_ANSWERS: Final = 2
"""Largest number of answers beside the counts of a store with several questions."""
NEXT: Final = ("repeatability", "crossed", "weight_decay")
"""Questions that come first after the ones that are answered."""


def title(observations: Observations, studies: Sequence[Study]) -> str:
    """Return the question of the store: that of its only design, or of its language models."""
    questions = [study.question for study in studies if not study.of_seeds and not isinstance(study, OwnStudy)]
    if len(observations.all_runs) == 1:
        return "When does this run generalise?" if len(observations.arithmetic) else "How well does this model predict?"
    if questions and (len(questions) == 1 or observations.arithmetic.empty):
        return questions[0]
    return "What does a seed decide?" if len(observations.all_runs) else "No finished run yet"


def sentence(observations: Observations, studies: Sequence[Study]) -> str:
    """Return what was trained, how many, what came out, how sure that is, and what is missing."""
    return f"{_outcome(observations, studies)} {absent(observations.once(roles).missing)}".rstrip()


def _outcome(observations: Observations, studies: Sequence[Study]) -> str:
    summary = next((study.summary for study in studies if study.summary), "")
    if summary:
        asked_for = [s for s in studies if s.summary != summary and not s.of_seeds and not isinstance(s, OwnStudy)]
        if len(asked_for) > 1:  # no title names one of them
            asked_for = [s for s in asked_for if s.headlines][:MOST_ANSWERS]
        firsts = [[*(f.short or f.text for f in [*s.headlines, *s.findings][:1]), *s.left] for s in asked_for]
        return " ".join([summary, *(text for first in firsts for text in first)])
    leads = ((study.headlines[0], study.left) for study in studies if study.headlines)
    lead = next((" ".join([first.short or first.text, *left]) for first, left in leads), "")
    n = int((observations.all_runs["status"] != "failed").sum())
    models = _different(observations.gpt, describe_language_model) or _different(observations.arithmetic, describe_task)
    models = models if observations.gpt.empty or len(models) <= 2 else []  # the findings name the conditions
    joined = " and " if len(models) == 2 else ", "
    done = observations.arithmetic["grokked_step"].notna()
    none = " None of them generalised." * (observations.gpt.empty and len(done) > 1 and not done.any())
    lost = len(observations.all_runs) - n
    none = f" {lost:,} failed." if lost and not n else none
    if n and (observations.all_runs["status"] == "diverged").all():
        none, lead = " All diverged.", ""
    return (
        f"{n or 'No'} finished run{'s' * (n != 1)}{': ' * bool(models)}{_some(models, joined)}.{none} {lead}".rstrip()
    )


def next_step(observations: Observations, gaps: Sequence[Missing]) -> Fact:
    """Return what to do next, in words and as a command: finish, ask the next question, or look at a run."""
    runs = observations.all_runs
    for of in unfinished(observations):
        if of.command:
            return Fact("If the sweep has stopped, go on:", of.command, is_command=True)
    if len(runs) and (runs["status"] == "failed").all():
        return Fact("All runs failed: see why.", f"grok store status {observations.path}", is_command=True)
    if runs.empty:
        first = proposal("grok sweep 'seed=range(0,64)'", observations)
        return Fact("Train some seeds.", first, is_command=True)
    for search in reversed(observations.searches):
        *sweeps, last = confirmation(search, observations) or [""]
        if sweeps:
            words = "Is the best of the search better than the default? Both on seeds that no trial had:"
            return Fact(words, " && ".join([*sweeps, last]), is_command=True)
    every = observations.once(asked)
    rows = usual(observations, every)
    n, done, steps = len(rows), int(rows["grokked_step"].notna().sum()), rows["config.train.steps"].max()
    varying = varying_columns(every) if n else []
    values = [f"{name.removeprefix('config.')}={literal(rows[name].iloc[0])}" for name in varying]
    seeds = shlex.join(["grok", "sweep", "seed=range(0,64)", *values])
    at = f" at {', '.join(settings_words(rows.iloc[0], varying))}" if values else ""
    longer = proposal(f"{seeds} train.steps={2 * steps}", observations) if n else ""
    if longer and done < min(FEWEST_DONE, n / 2):
        words = f"Of {n:,} seed{'s' * (n > 1)}{at} {done or 'none'} generalised within {steps:,} steps: train longer."
        return Fact(words, longer, is_command=True)
    if 0 < n < FEW_SEEDS and (more := proposal(seeds, observations)):
        return Fact(f"Train more seeds{at and f', for example{at}'}.", more, is_command=True)
    if rows["grokked_step"].isna().all():
        gaps = [gap for gap in gaps if gap.name != "repeatability"]  # it chooses the best of those that were asked for
    order = [gap for name in (*NEXT, "") for gap in gaps if gap.command and name in ("", gap.name)]
    if order:
        words = f"{order[0].question}{' That takes more seeds first.' * order[0].first}"
        return Fact(words, order[0].command, is_command=True)
    return Fact(
        "Look at a run.", f"grok show {runs['run_id'].iloc[0][:10]} --store {observations.path}", is_command=True
    )


# The user's own figures and studies in a report, given on the command line by their import path.

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
    if targets:
        name_code(folder, targets)
    functions = {target: load(target) for target in targets}
    for target, function in functions.items():
        if not callable(function):
            raise ConfigError(f"--with {target}: expected a function of the store's observations")
    return [partial(_ask, target, function) for target, function in functions.items()]


def _ask(target: str, function: Callable[[Observations], Any], observations: Observations) -> Study:
    """Return the study that the user's ``function`` makes of a store, or one of the figures that it returns."""
    from grok.analysis.figures.style import Drawing, in_style

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
    for i, drawing in enumerate(drawn):
        if not isinstance(drawing, Drawing):
            raise ConfigError(
                f"--with {target} gave a {type(drawing).__name__}{f' as element {i} of its list' * (answer is drawn)}: "
                "expected a grok.analysis.figures.style.Drawing, a list of them, or a grok.analysis.studies.Study"
            )
    title = name.replace("_", " ").capitalize()  # the pictures have titles of their own
    notes = [] if drawn else ["The store has no data for it."]
    scope = f"by {target}"
    return _fit(target, OwnStudy(name=name, title=title, question=question, notes=notes, scope=scope, drawn=drawn))


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


# The report as data: the answered questions, what the others need, and the origin of the numbers.


@dataclass(frozen=True)
class Report:
    """The content of the page."""

    store: str
    """Name of the store's folder."""
    place: str
    """The store's path as the user gave it, for commands."""
    title: str
    """The question that the store was made for."""
    sentence: str
    """Its answer: what was trained, how many, what came out and how sure."""
    next_step: Fact
    heading: list[Fact]
    provenance: Provenance
    studies: list[Study]
    missing: list[Missing]
    labels: dict[str, str]
    """Name of each run for readers, such as ``seed 17``, by ``run_id``."""
    standing: str = ""
    """How far the store's sweeps are, if the page is written while they run."""

    def as_json(self) -> dict[str, Any]:
        """Return report.json."""
        return {
            "store": self.store,
            "title": self.title,
            "sentence": self.sentence,
            "heading": {fact.name: fact.text for fact in self.heading},
            "provenance": self.provenance.as_json(),
            "studies": [study.as_json() for study in self.studies],
            "missing": [gap.as_json() for gap in self.missing],
        }


def compile_report(observations: Observations, own: Sequence[Own] = ()) -> Report:
    """Return the answers to all questions, then those of the user's own studies."""
    answers = [question.ask(observations) for question in QUESTIONS]
    answers += [ask(observations) for ask in own]
    path = observations.path
    only_language = bool(len(observations.gpt)) and observations.arithmetic.empty
    studies = [a for a in answers if isinstance(a, Study)]
    gaps = [a for a in answers if isinstance(a, Missing) and (a.started or (a.command and not only_language))]
    return Report(
        path.resolve().name if path else "",
        str(path) if path else "STORE",
        title(observations, studies),
        sentence(observations, studies),
        next_step(observations, gaps),
        heading(observations),
        provenance(observations),
        studies,
        gaps,
        run_labels(observations.all_runs),
    )
