"""Compares a store's runs of the default regime with an independent run of it: ``python -m benchmarks.regime STORE``.

The median of seeds 0 to 11 at step 3,000 must lie inside the ranges of the independent run
(:mod:`analysis.studies.census`). Single seeds outside are named; some are expected, because some seeds are fast.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.studies.census import RANGES, SEEDS, STEP
from benchmarks.harness import table
from grok.config import identify, load_config
from grok.store import open_store


def stored(store: Path) -> pd.DataFrame:
    """Return the rows of seeds 0 to 11 at step 3,000, one per seed, in seed order."""
    runs = open_store(store).runs().set_index("run_id")
    wanted = {identify(load_config({"mode": "arithmetic", "seed": seed})).trajectory_id: seed for seed in SEEDS}
    mine = runs[runs["trajectory_id"].isin(wanted.keys()) & (runs["steps"] == STEP)]
    mine = mine.assign(seed=mine["trajectory_id"].map(wanted)).drop_duplicates("seed").sort_values("seed")
    return mine[["seed", *RANGES, "numerics", "git_commit", "git_dirty", "weights_hash"]]


def page(runs: pd.DataFrame) -> tuple[str, bool]:
    """Return the comparison as Markdown, and whether every median lies inside."""
    lines = [
        "# Seeds 0 to 11 of the default regime at step 3,000",
        "",
        "`python -m grok.run -m 'seed=range(0,12)' store.path=S`, then `python -m benchmarks.regime S`.",
        "The ranges are those of an independent run of the regime over 12 ordinary seeds. None of ours is left out.",
        "",
    ]
    rows: list[tuple[object, ...]] = [
        (row["seed"], *_cells(row), ", ".join(_outside(row))) for _, row in runs.iterrows()
    ]
    medians = {name: float(runs[name].median()) for name in RANGES}
    rows.append(("**median**", *_cells(medians), ""))
    rows.append(("*range*", *(f"{low} to {high}" for low, high in RANGES.values()), ""))
    lines += table(("seed", "train loss", "val accuracy", "val loss", "weight norm", "outside"), rows)
    inside = len(runs) == len(SEEDS) and not _outside(medians)
    verdict = "Every median lies inside its range." if inside else "**Not every median lies inside its range.**"
    tags = "; ".join(sorted(set(runs["numerics"])))
    commits = ", ".join(
        sorted(
            {
                f"{c[:10]}{' with changes' if d else ''}"
                for c, d in zip(runs["git_commit"], runs["git_dirty"], strict=True)
            }
        )
    )
    lines += [f"{verdict} {len(runs)} of {len(SEEDS)} seeds. Numerics: `{tags}`. Commit {commits}.", ""]
    return "\n".join(lines), inside


def _cells(row: Any) -> tuple[str, ...]:
    """Return train loss, accuracy, loss and norm as they stand in the table."""
    return f"{row['train_loss']:.3f}", f"{row['val_acc']:.4f}", f"{row['val_loss']:.2f}", f"{row['weight_norm']:.2f}"


def _outside(row: Any) -> list[str]:
    return [name for name, (low, high) in RANGES.items() if not low <= row[name] <= high]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results/default-regime"))
    arguments = parser.parse_args()
    runs = stored(arguments.store)
    text, inside = page(runs)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "seeds-0-to-11.md").write_text(text)
    runs.to_csv(arguments.out / "seeds-0-to-11.csv", index=False)
    print(text)
    return 0 if inside else 1


if __name__ == "__main__":
    sys.exit(main())
