"""``grok list [STORE] [FILTER ...]``: the runs of a store as a table, one line each."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Final

import pandas as pd

from grok.analysis.observations import Observations, in_words, told_apart
from grok.analysis.studies.seeds import seed_table
from grok.commands.command import Parser, add_store, command, store_of
from grok.commands.words import column_named, is_filter, matching

SHOWN: Final = {
    "seed": "seed",
    "class_accuracy": "class",
    "class_time": "early or late",
    "grokked_step": "generalised",
    "steps": "steps",
    "val_acc": "val accuracy",
    "val_loss": "val loss",
    "status": "status",
    "condition": "condition",
    **{name: name for name in ("design", "role", "design_id")},
}
"""Columns of the table of all runs, with their names here."""
DIGITS: Final = 12
"""Characters of a run_id that are shown."""


def listed_runs(observations: Observations) -> pd.DataFrame:
    """Return one row for every run of a store: its seed, class, result, the designs that claim it, and its name."""
    every = seed_table(observations)
    if "class_accuracy" in every and every["class_accuracy"].isna().all():  # elsewhere early and late are the classes
        every = every.drop(columns="class_accuracy").rename(columns={"class_time": "class_accuracy"})
    return every[["run_id", *(column for column in SHOWN if column in every)]].rename(
        columns={**SHOWN, "run_id": "run"}
    )


def filtered(observations: Observations, words: Sequence[str]) -> pd.DataFrame:
    """Return the rows of ``listed_runs`` that satisfy all ``words``: bounds on `searched`, or text that is listed.

    Raises:
        ConfigError: a filter names no column.
    """
    listed = observations.once(listed_runs)
    bounds = [word for word in words if is_filter(word)]
    texts = [word for word in words if not is_filter(word)]
    return listed[matching(observations.once(searched), bounds) & matching(listed, texts)]


def searched(observations: Observations) -> pd.DataFrame:
    """Return ``listed_runs`` with every setting, under its full name and its last part, and what else is recorded.

    Of several columns of one name the first counts: those of the list, then settings that differ between runs.
    """
    listed = observations.once(listed_runs)
    recorded = observations.all_runs.set_index("run_id").loc[listed["run"]].set_axis(listed.index)
    for name in recorded.select_dtypes(exclude="number"):
        recorded[name] = recorded[name].map(in_words, na_action=None)
    settings = [c for c in map(str, recorded) if c.startswith("config.") and not c.startswith("config.seeds.")]
    settings.sort(key=lambda column: recorded[column].nunique(dropna=False) < 2)
    full = recorded[settings].rename(columns=lambda name: name.removeprefix("config."))
    last = full.rename(columns=lambda name: name.rpartition(".")[2])
    seeds = recorded.filter(like="seed_").rename(columns=lambda name: name.replace("seed_", "seeds."))
    table = pd.concat([listed, full, last, seeds, recorded.drop(columns=settings)], axis=1)
    return table.loc[:, ~table.columns.duplicated()]


def shown(table: pd.DataFrame) -> pd.DataFrame:
    """Return what a terminal shows of ``table``: short names, few digits, and of conditions only what differs."""
    table = table.assign(run=table["run"].str[:DIGITS], condition=_differing(table["condition"]))
    constant = [
        name for name in ("condition", "status", "early or late") if name in table and table[name].nunique() < 2
    ]
    for name in table.select_dtypes("float"):
        table[name] = table[name].map("{:.4g}".format, na_action="ignore")
    return table.drop(columns=["role", "design_id", *constant]).astype(object).where(table.notna(), "-")


def _differing(conditions: pd.Series) -> pd.Series:
    """Return conditions in words without the settings that all of them share; of many, those that tell them apart."""
    parts = conditions.str.split(", ")
    shared = set.intersection(*map(set, parts)) if len(parts) else set()
    names = [[word for word in words if word not in shared] for words in parts]
    names = told_apart(names) if len(set(map(len, names))) == 1 else names
    return pd.Series([", ".join(words) for words in names], conditions.index, dtype=object)


def parser() -> Parser:
    """Return the command's arguments."""
    parser = Parser(
        prog="grok list",
        description="The runs of a store as a table. A filter is a word that a row contains, or a bound on a column or "
        "a setting, given by the beginning of its name; all must hold.",
        epilog="example: grok list results/store class=super 'generalised<2000' design=branch",
    )
    add_store(parser)
    parser.add_argument(
        "filters",
        nargs="*",
        metavar="FILTER",
        help="seed=8, class=super, 'generalised<2000', design=branch, role=child",
    )
    parser.add_argument("--sort", metavar="COLUMN", help="lowest first; -COLUMN: highest first (--sort=-val_accuracy)")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--csv", action="store_true", help="comma-separated values, all digits")
    output.add_argument("--json", action="store_true", help="one JSON object a line, all digits")
    return parser


def _arguments(argv: list[str]) -> argparse.Namespace:
    """Return the parsed words; a first word that is a filter is no store."""
    arguments = parser().parse_intermixed_args(argv)
    if arguments.store is not None and (is_filter(arguments.store) or arguments.named_store is not None):
        arguments.filters.insert(0, arguments.store)
        arguments.store = None
    return arguments


@command()
def main(argv: list[str]) -> int:
    """Print the runs that satisfy all filters."""
    arguments = _arguments(argv)
    observations = Observations.read(store_of(arguments))
    chosen = filtered(observations, arguments.filters)
    if arguments.sort is not None:
        table = observations.once(searched).loc[chosen.index]
        column = table[column_named(table, arguments.sort.removeprefix("-"))]
        chosen = chosen.loc[column.sort_values(ascending=not arguments.sort.startswith("-"), kind="stable").index]
    if arguments.csv:
        print(chosen.to_csv(index=False), end="")
    elif arguments.json:
        print(chosen.to_json(orient="records", lines=True), end="")
    else:
        if len(chosen):
            print(shown(chosen).to_string(index=False))
        print(f"{len(chosen):,} of {len(observations.all_runs):,} runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
