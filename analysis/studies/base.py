"""The result of a study: findings with intervals, tables and notes, for one population or condition or several."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pandas as pd

from grok.analysis.observations import (
    CONDITION_SETTINGS,
    PLAIN_SETTINGS,
    Condition,
    Observations,
    computed_apart,
    is_derived,
    listed,
    settings_words,
    varying_columns,
    without_repetition,
)
from grok.analysis.populations import LEFT, Population, Populations, populations
from grok.analysis.proposals import FEWEST_TO_CHOOSE_FROM, proposal, to_choose_from
from grok.analysis.purposes import absent, after_results, roles, triples
from grok.analysis.statistics.estimate import Estimate, NotEnoughData, holm
from grok.store.designs import TRAINED


@dataclass(frozen=True)
class Finding:
    """One answer: a label, the formatted number, and a sentence."""

    label: str
    shown: str
    text: str
    estimate: Estimate | None = None
    headline: bool = False
    listed: bool = True
    """Whether the page shows the sentence; if not, a table has the number."""
    short: str = ""
    """The sentence for the first screen; empty: ``text`` is short enough."""

    @property
    def brief(self) -> str:
        """The number with its interval and n, for a line that stands alone."""
        if self.estimate is None:
            return self.shown
        interval = "" if "(" in self.shown else f", {self.estimate.percent()}" if " of " in self.shown else ""
        return f"{self.shown}{interval}" if interval else f"{self.shown}, n = {self.estimate.n:,}"

    def as_json(self) -> dict[str, Any]:
        """Return a dict for JSON."""
        estimate = self.estimate.as_json() if self.estimate else None
        return {"label": self.label, "shown": self.shown, "text": self.text, "estimate": estimate}


@dataclass(frozen=True)
class Table:
    """A table of the page and its CSV file; the column names are the headings."""

    name: str
    caption: str
    frame: pd.DataFrame
    open: bool = True
    """Whether the table is shown without a click."""
    code: tuple[str, ...] = ()
    """Columns in code font (commands, hashes)."""


@dataclass(kw_only=True)
class Study:
    """The answer to one question."""

    name: str = ""
    """The name, title and text of the question, which sets them."""
    title: str = ""
    question: str = ""
    scope: str = ""
    """Its runs: their number, varying and fixed streams, settings. Empty if the notes say it."""
    of_seeds: bool = False
    """As of the question."""
    about: str = ""
    """The name of its population or condition; empty if the store has only one."""
    parts: list[Study] = field(default_factory=list)
    """The answers for each population or condition, if the store has several."""
    summary: str = ""
    """What was trained, how many, what came out and how sure: for the top of the page. Empty: no such sentence."""
    lead: str = ""
    """Name of the figure that shows it."""
    findings: list[Finding] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: dict[str, pd.DataFrame] = field(default_factory=dict)
    """Tables too large for the page, by their csv file's name in the report's folder."""
    counted: Collection[str] = ()
    """The runs that it counts, for what their plans miss; those of its parts count, too."""
    missing: str = ""
    """How many runs that were planned with these are not stored, and what that may do; empty: none."""
    left: list[str] = field(default_factory=list)
    """Which seeds of these plans it leaves out, and why."""

    def tell(
        self,
        label: str,
        shown: str,
        text: str,
        estimate: Estimate | None = None,
        headline: bool = False,
        listed: bool = True,
    ) -> None:
        """Add a finding."""
        self.findings.append(Finding(label, shown, text, estimate, headline, listed))

    def tabulate(self, name: str, caption: str, rows: Any, open: bool = True, code: tuple[str, ...] = ()) -> None:
        """Add a table of ``rows``: a frame, or a dict of each row."""
        self.tables.append(Table(name, caption, pd.DataFrame(rows), open, code))

    @property
    def headlines(self) -> list[Finding]:
        """The findings on the section's cards and at the top of the page."""
        return [finding for finding in self.findings if finding.headline]

    @property
    def lacks(self) -> list[str]:
        """What stands beside its answer: the planned runs that it does not count."""
        return [*[self.missing] * bool(self.missing), *self.left]

    def as_json(self) -> dict[str, Any]:
        """Return the study as a dict for report.json."""
        return {
            "name": self.name,
            "title": self.title,
            "question": self.question,
            "scope": self.scope,
            "about": self.about,
            "parts": [part.as_json() for part in self.parts],
            "findings": [f.as_json() for f in self.findings],
            "tables": [t.name for t in self.tables],
            **({"files": list(self.files)} if self.files else {}),
            **({"lacks": self.lacks} if self.lacks else {}),
            "notes": self.notes,
        }


@dataclass(kw_only=True)
class OwnStudy(Study):
    """The user's own section, with its figures."""

    drawn: list[Any] = field(default_factory=list)
    """``grok.analysis.figures.style.Drawing``s."""


@dataclass(frozen=True)
class Missing:
    """A question that the store cannot answer yet."""

    name: str
    title: str
    question: str
    needs: str
    command: str
    started: bool
    """Whether the store has runs of this study."""
    first: bool = False
    """Whether the command only trains what the question's own needs."""

    def as_json(self) -> dict[str, Any]:
        """Return the question and what it needs as a dict for report.json."""
        return {name: value for name, value in vars(self).items() if name not in ("started", "first")}


@dataclass(frozen=True)
class Question:
    """A question that a store may answer, and the command that trains the runs for it."""

    name: str
    title: str
    question: str
    command: str
    """Empty if no single command trains the runs; the report then omits the question while the store has no runs."""
    answer: Callable[[Observations], Study]
    """Return the answer; raise NotEnoughData if the store has too few data."""
    applies: Callable[[Observations], bool]
    """Whether the store has runs of this study, by their config columns."""
    any_task: bool = True
    """Whether the command can train any task; it then gets the settings of the store's first sweep."""
    reads_designs: bool = False
    """Whether runs count by their role in a design: what is unknown is then said, with and without an answer."""
    of_seeds: bool = False
    """Whether any seeds answer it, so that it does not say what the runs were for."""

    def ask(self, observations: Observations) -> Study | Missing:
        """Return the answer, or what is missing for it."""
        started = self.applies(observations)
        notes = observations.once(roles).said if self.reads_designs else []
        try:
            if not started:
                raise NotEnoughData("runs of this study; the store has none")
            study = self.answer(observations)
        except NotEnoughData as gap:
            needs = ". ".join([gap.needs, *(note.removesuffix(".") for note in notes)])
            first = gap.command
            kinds = [p for p in observations.once(populations).every if not p.varies[0].startswith("layers.")]
            usable = any(p.from_masters or "repeat" in self.command for p in kinds)
            usable &= len(to_choose_from(observations)) >= FEWEST_TO_CHOOSE_FROM
            if self.command.startswith(("grok repeat", "grok branch")) and not usable:
                first = "grok sweep sweep=census"  # there is nothing to choose from
            command = proposal(first or self.command, observations, self.any_task or bool(first))
            command *= "longer runs of these seeds" not in gap.needs  # which new ones of the same length are not
            return Missing(self.name, self.title, self.question, needs, command, started, bool(first))
        study.counted = {*study.counted, *(run for part in study.parts for run in part.counted)}
        study.left += [f"{part.about}: {text}" for part in study.parts for text in part.left]
        for part in (study, *study.parts):
            part.name, part.title, part.question = self.name, self.title, self.question
            part.missing = absent(observations.once(roles).missing_with(part.counted))
        study.notes += notes
        study.of_seeds = self.of_seeds
        return study


# The answers to one question for several populations or conditions, side by side.

MOST_CARDS: Final = 6
"""Largest number of answers with a card each; of more, one card shows the range."""
ALARM: Final = 0.05


@dataclass(frozen=True)
class Beside:
    """How the answers are compared."""

    row: Callable[[Any], Mapping[str, object]] = lambda part: {f.label: f.shown for f in part.headlines}
    """Return an answer's row of the table; by default its headlines."""
    compare: Callable[[Any, Any], float | None] | None = None
    """Return the p-value that the reference (first) and another do not differ; None if they are not comparable."""
    meaning: str = ""
    """The null hypothesis in words: the caption says "that {meaning} as in the first"."""


def otherwise(rows: pd.DataFrame, base: pd.DataFrame, reference: str) -> str:
    """Return that ``rows`` were computed otherwise than ``base``, in words; empty if alike."""
    apart = computed_apart(rows, base) if len(rows) and len(base) else []
    return f"not computed as {reference} ({listed(apart)}), which can make a difference, too" if apart else ""


def side_by_side(
    units: Sequence[Any],
    every: int,
    answer: Callable[[Any], Study],
    beside: Beside,
    scope: Callable[[], str],
    kind: str,
) -> Study:
    """Return the answer for the only unit, or a study with the answer for each of ``units`` in ``parts``.

    Args:
        units: the largest populations or conditions, the reference first; each has a name, runs, and their number.
        every: number of all of them; a note counts those that are left out.
        answer: returns the answer for one.
        beside: how the answers are compared.
        scope: returns the scope of several.
        kind: ``population`` or ``condition``.

    Raises:
        NotEnoughData: no unit has an answer.
    """
    parts, gaps = _answered(units, answer, kind)
    if every == 1:
        return parts[0]
    study = Study(scope=scope(), parts=parts)
    p = _p_values(parts, beside)
    rows = {unit.name: unit.rows for unit in units}
    apart = {about: otherwise(rows[about], rows[parts[0].about], "that one") for about in p}
    study.findings = [*_differences(parts, p, apart, beside, kind, len(gaps)), *_leading(parts, kind, every), *gaps]
    own = [(i, part, table) for i, part in enumerate(parts, 1) for table in part.tables]
    study.tables = [_table(parts, {unit.name: len(unit) for unit in units}, p, beside, kind)]
    study.tables += [replace(t, name=f"{t.name}_{i}", caption=f"{p.about}: {t.caption}", open=False) for i, p, t in own]
    study.notes = _notes(parts)
    if every > len(units):
        shown = f"shown are the first and the {len(units) - 1} largest of the others"
        study.notes.append(f"{every - len(units)} more {kind}s are left out: {shown}, of equals those that come first.")
    return study


def _answered(units: Sequence[Any], answer: Callable[[Any], Study], kind: str) -> tuple[list[Study], list[Finding]]:
    """Return the answer for each of ``units``, and what the others need.

    Raises:
        NotEnoughData: no unit has an answer.
    """
    parts: list[Study] = []
    needs: dict[str, str] = {}
    for unit in units:
        try:
            part = answer(unit)
        except NotEnoughData as gap:
            needs[unit.name] = gap.needs
            continue
        part.about = unit.name
        parts.append(part)
    words = {re.sub(r" \(seen: [^)]*\)", "", words) if len(needs) > 1 else words for words in needs.values()}
    if not parts and len(words) == 1:
        raise NotEnoughData(f"{f'in each {kind} ' if len(needs) > 1 else ''}{words.pop()}")
    if not parts:
        raise NotEnoughData("; ".join(f"{name}: {words}" for name, words in needs.items()))
    return parts, [
        Finding(name, "not enough data", f"{name}: not enough data, needs {words}.") for name, words in needs.items()
    ]


def _p_values(parts: Sequence[Study], beside: Beside) -> dict[str, float]:
    """Return the Holm-adjusted p-value of each part against the first, by its name."""
    if beside.compare is None or len(parts) < 2:
        return {}
    raw = {part.about: beside.compare(parts[0], part) for part in parts[1:]}
    tested = {about: p for about, p in raw.items() if p is not None}
    return dict(zip(tested, map(float, holm(list(tested.values()))), strict=True)) if tested else {}


def _differences(
    parts: Sequence[Study], p: Mapping[str, float], apart: Mapping[str, str], beside: Beside, kind: str, untested: int
) -> list[Finding]:
    """Return the finding which parts differ from the first beyond chance; empty without tests."""
    if not p:
        return []
    clear = [about for about, value in p.items() if value < ALARM]
    text = f"{len(clear)} of {len(p)} differ from {parts[0].about} beyond chance"
    text += f" ({'; '.join(clear)})" if clear else ""
    text += f". Tested: {beside.meaning} as in that one, Holm-adjusted p below {ALARM} over all {len(p)}."
    text += f" Without an answer, so not tested: {untested}." * bool(untested)
    for words in dict.fromkeys(apart[about] for about in clear if apart[about]):
        text += f" {'; '.join(about for about in clear if apart[about] == words)}: {words}."
    return [Finding(f"{kind}s that differ beyond chance from {parts[0].about}:", f"{len(clear)} of {len(p)}", text)]


def _leading(parts: Sequence[Study], kind: str, every: int) -> list[Finding]:
    """Return one card for each part, or one with the range of those of ``every`` that are known if there are many."""
    lead_of = _common_lead(parts)
    leading = [(part, lead) for part in parts if (lead := lead_of(part))]
    if len(leading) <= MOST_CARDS:
        cards = [
            replace(lead, label=f"{lead.label}; {part.about}", text=f"{part.about}: {lead.text}")
            for part, lead in leading
        ]
        if len(cards) > 1:  # alone on the first screen: what all parts say, not the first of them
            each = (f"{card.label[0].upper()}{card.label[1:]}: {card.shown}." for card in cards)
            cards[0] = replace(cards[0], short=" ".join(each))
        return cards
    known = [(part, lead) for part, lead in leading if lead.estimate is not None and lead.label == leading[0][1].label]
    if len(known) < 2:
        return []
    values = [lead.estimate.value for _, lead in known if lead.estimate is not None]
    both = [[pair for pair, value in zip(known, values, strict=True) if value == end(values)] for end in (min, max)]
    (low, *lows), (high, *highs) = both
    also = [f" (equal in {len(ties)} more)" * bool(ties) for ties in (lows, highs)]
    shown = " to ".join(re.sub(r" \([^)]*\)", "", lead.shown) for _, lead in (low, high))
    text = f"Lowest at {low[0].about}{also[0]}: {low[1].shown}. Highest at {high[0].about}{also[1]}: {high[1].shown}."
    if low is high:
        shown, text = shown.partition(" to ")[0], f"Equal in all {len(known)}: {low[1].shown} with {low[0].about}."
    of = f"{len(known)} of {every}" if every > len(known) else f"{len(known)}"
    return [Finding(f"{leading[0][1].label}, over {of} {kind}s", shown, text, headline=True)]


def _common_lead(parts: Sequence[Study]) -> Callable[[Any], Finding | None]:
    """Return the function that gives a part's card: the first headline that all parts have, else the part's own."""
    labels = [{finding.label for finding in part.findings} for part in parts]
    headlines = [finding.label for part in parts for finding in part.findings if finding.headline]
    label = next((label for label in headlines if all(label in known for known in labels)), None)

    def lead(part: Study) -> Finding | None:
        if label is None:
            return next((finding for finding in part.findings if finding.headline), None)
        return replace(next(finding for finding in part.findings if finding.label == label), headline=True)

    return lead


def _table(
    parts: Sequence[Study], sizes: Mapping[str, int], p: Mapping[str, float], beside: Beside, kind: str
) -> Table:
    records = []
    for part in parts:
        record: dict[str, object] = {kind: part.about, "runs": sizes[part.about], **beside.row(part)}
        if p:
            record["p (Holm)"] = "reference" if part is parts[0] else f"{p[part.about]:.2g}" if part.about in p else ""
        records.append(record)
    caption = f"Every {kind}, 95% intervals"
    if p:
        caption += f"; p (Holm): that {beside.meaning} as in the first"
    return Table(f"{kind}s", caption, pd.DataFrame(records).fillna(""))


def _notes(parts: Sequence[Study]) -> list[str]:
    """Return each note once; notes that not all parts have begin with the names of their parts."""
    who: dict[str, list[str]] = {}
    for part in parts:
        for note in part.notes:
            who.setdefault(note, []).append(part.about)
    return [note if len(names) == len(parts) else f"{'; '.join(names)}: {note}" for note, names in who.items()]


# The answers to one question for every population, or every condition, of a store: side by side if there are several.

MOST: Final = 12
"""Largest number of populations or conditions with an answer; a note counts the others."""


def has_populations(observations: Observations) -> bool:
    """Return whether the store has a population."""
    return bool(observations.once(populations).every)


def by_population(
    one: Callable[[Observations, Population], Study], beside: Beside, most: int = MOST
) -> Callable[[Observations], Study]:
    """Return the function that answers for every population of a store, each by ``one``.

    It raises NotEnoughData if there is no population, or none has enough data.
    """

    def answer(observations: Observations) -> Study:
        grouped = observations.once(populations)
        if not grouped.every:
            needs = "at least one finished run of a random seed, or five seeds of one stream, the others fixed"
            raise NotEnoughData(needs)

        def part(population: Population) -> Study:
            study = one(observations, population)
            study.scope, study.counted = population.scope, population.rows.index
            study.notes += one_by_one(observations, population.rows.index)
            return study

        kept = {id(p) for p in sorted(grouped.every[1:], key=lambda p: -len(p))[: most - 1]}
        largest = [p for i, p in enumerate(grouped.every) if i == 0 or id(p) in kept]  # the reference, and the others
        first = largest[0].rows
        late = [p.name for p in largest[1:] if after_results(first, p.rows) or after_results(p.rows, first)]
        test = beside.compare or (lambda first, other: None)
        how = replace(beside, compare=lambda first, other: None if other.about in late else test(first, other))
        study = side_by_side(largest, len(grouped.every), part, how, lambda: _scope(grouped, largest), "population")
        study.notes += [f"{name}: seeds listed after results of theirs; no test against the first." for name in late]
        study.notes += [LEFT[kind].format(n) for kind, n in grouped.left.items() if n]
        return study

    return answer


def one_by_one(observations: Observations, runs: pd.Index, most: float = 0.0) -> list[str]:
    """Return how many of ``runs`` no design lists beside others, and what that may do; empty up to a share ``most``."""
    plans = observations.once(roles).rows
    plans = plans[plans["role"].isin(["member", "cell"])]
    size = plans.groupby("design_id")["run_id"].transform("size").groupby(plans["run_id"]).max()
    n = int((size.reindex(runs) == 1).sum())
    text = f"Asked for one by one: {n:,} of these seeds. If they were chosen by results elsewhere, shares are biased."
    return [text] * (n > most * len(runs))


def failed(observations: Observations, population: Population) -> list[str]:
    """Return how many seeds of a population were planned with its runs and failed, and what that may do."""
    plans, runs = observations.once(roles).rows, observations.all_runs.set_index("run_id")
    of = plans["design_id"][plans["run_id"].isin(population.rows.index) & plans["role"].isin(TRAINED)]
    lost = runs[(runs["status"] == "failed") & runs.index.isin(plans["run_id"][plans["design_id"].isin(of)])]
    label = observations.conditions(pd.concat([runs.loc[population.rows.index[:1]], lost]))
    lost = lost[(label.iloc[1:] == label.iloc[0]).to_numpy()]
    for stream, seed in population.fixed.items():
        lost = lost[lost[f"seed_{stream}"] == seed]
    for stream in population.varies if population.from_masters else ():
        lost = lost[is_derived(lost, stream)]
    n = len(set(triples(lost)) - set(triples(population.rows)))
    return [f"{n:,} more failed. If slow seeds fail more often, shares are too high."] if n else []


def _scope(grouped: Populations, shown: Sequence[Population]) -> str:
    """Return a sentence about the populations: the names of those that are ``shown``, then what all share."""
    names = [f"{p.name} (n = {len(p):,})" for p in shown]
    more = f" and {len(grouped.every) - len(shown)} more" if len(grouped.every) > len(shown) else ""
    text = f"{len(grouped.every)} populations, each with its own answer: {'; '.join(names)}{more}."
    if len({(p.varies, tuple(p.fixed.items())) for p in grouped.every}) == 1:
        first = grouped.every[0]
        drawn = (
            f"{listed(first.varies)} differ from seed to seed" if first.from_masters else f"{first.unit}, one per run"
        )
        if first.from_masters and len({seed for p in grouped.every for seed in p.rows["seed"]}) == 1:
            drawn = f"seed {first.rows['seed'].iloc[0]} alone"
        text += f" In all of them: {drawn}{f', {first.held} fixed' if first.fixed else ''}."
    shared = grouped.every[0].shared(grouped.settings)
    return f"{text} Shared: {shared}."


def by_condition(
    conditions: Callable[[Observations], Sequence[Condition]],
    one: Callable[[Observations, Condition], Study],
    beside: Beside,
    settings: Sequence[str] = CONDITION_SETTINGS,
) -> Callable[[Observations], Study]:
    """Return the function that answers for every one of ``conditions``, each by ``one``.

    For designs that are not populations of seeds: crossed streams, branches, measured runs. ``settings`` are those that
    make conditions different. It raises NotEnoughData if there is no condition, or none has enough data.
    """

    def answer(observations: Observations) -> Study:
        every = conditions(observations)
        if not every:
            raise NotEnoughData("runs of this study")

        def scope() -> str:
            varying = varying_columns(pd.concat([c.rows for c in every]), settings)
            names = listed(without_repetition(c.removeprefix("config.") for c in varying) or ["their data"])
            return f"{len(every)} conditions, each with its own answer. They differ in {names}."

        def part(condition: Condition) -> Study:
            study = one(observations, condition)
            study.counted = condition.rows.index
            return study

        study = side_by_side(every[:MOST], len(every), part, beside, scope, "condition")
        if len(every) == 1 and (every[0].rows["mode"] == "arithmetic").all():  # which of the store's conditions it is
            varying = varying_columns(observations.arithmetic, PLAIN_SETTINGS)
            study.about = ", ".join(settings_words(every[0].rows.iloc[0], varying))
        return study

    return answer
