"""The runs that train.sh chooses: ``python results/diary/chosen.py parent|supers|recipients STORE``."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from grok.analysis.observations import Observations, is_random_seed
from grok.analysis.studies.branching import pairs
from grok.store import open_store
from grok.streams import Stream, derive_seed

PARENT_SEED = 100012
"""A parent that another census found fast; its store is not kept. Its streams are typed one by one, so it is no random
seed of this census."""
STREAMS = ("split", "init", "order")


def plain(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of the regime that repeat no other one and have no layer of another one."""
    runs = runs[(runs["config.perturb.ulps"] == 0) & (runs["replicate"] == 0) & (runs["layers"] == "{}")]
    runs = runs[(runs["config.optim.weight_decay"] == 0.1) & (runs["config.train.steps"] == 3000)]
    return runs[runs["config.precision"].eq("float32") & runs["config.numerics.path"].eq("auto")]


def parent(store: str) -> str:
    """Return the run_id of the named parent; an empty text if it is not there yet."""
    if not Path(store, "store.json").exists():  # a plan makes no store
        return ""
    runs = plain(open_store(store).runs())
    for stream in STREAMS:
        runs = runs[runs[f"seed_{stream}"] == derive_seed(PARENT_SEED, stream)]
    return "".join(runs["run_id"].head(1))


def supers(store: str) -> list[str]:
    """Return the super runs among random seeds and the named parent's own children.

    Those among theirs do not count: some of these are super, too, and so on without an end.
    """
    seen = Observations.read(store)
    related = pairs(seen)
    runs = plain(seen.all_runs.set_index("run_id", drop=False))
    runs = runs[runs["val_acc"].gt(0.98)]
    own = runs.index.isin(related["child"][related["parent"] == parent(store)])
    return sorted(runs.index[is_random_seed(runs) | own])


def recipients(store: str) -> list[int]:
    """Return the two best seeds of 0 to 999, and two others at random."""
    runs = plain(open_store(store).runs())
    random = runs["config.seeds.split"].isna() & runs["config.seeds.init"].isna() & runs["config.seeds.order"].isna()
    seeds = runs[random & runs["seed"].between(0, 999)].sort_values("val_loss")["seed"].tolist()
    others = sorted(seeds[2:])
    drawn = Stream("sweep", 0).at("diary", "layers").permutation(len(others))[:2]
    return [*seeds[:2], *(others[i] for i in drawn)]


if __name__ == "__main__":
    what, store = sys.argv[1:]
    if what == "parent":
        print(parent(store))
    else:
        print(*{"supers": supers, "recipients": recipients}[what](store), sep="," if what == "supers" else " ")
