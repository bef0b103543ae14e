"""How much do two runs of a language model differ by their seeds? Trains cells of init × order × dropout.

``python results/language-seeds/train.py TEXT --data DIR --store STORE [SETTING ...]``: TEXT is the TinyStories sample,
DIR the folder of the prepared corpus, both outside of the project. The cells come in a drawn order, so that the first
ones (``--cells N``) are a sample of the grid, and more of them extend it. The first third of all cells runs twice, with
initial weights that differ in the last place: their difference is chaos. The same command goes on where it stopped.
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import numpy as np

from grok.commands.command import GO_ON, Parser, command
from grok.commands.compose import apply, compose
from grok.config import load_config
from grok.execute import Designed, execute
from grok.store import Purpose, Purposes
from grok.streams import Stream
from grok.text.preparation import Request, prepare

GRID = {"init": 6, "order": 6, "dropout": 2}
MODEL = ["mode=gpt", "experiment=gpt/tinystories_sample", "train.early_stop=0", "train.threads=1", "save=none"]
MEASURED = ["eval.windows=null", "eval.sample_tokens=0", "perturb.ulps=1", "log.quiet=true"]


def cells(count: int | None) -> list[dict[str, int]]:
    """Return the seeds of each run, in a drawn order: ``count`` cells (None: all), the first third of all twice."""
    size = math.prod(GRID.values())
    places = Stream("sweep", 0).at("language seeds").permutation(size)[:count]
    levels = np.unravel_index(places, tuple(GRID.values()))
    drawn = [dict(zip(GRID, map(int, cell), strict=True)) for cell in zip(*levels, strict=True)]
    return [{**cell, "repeat": repeat} for n, cell in enumerate(drawn) for repeat in range(2 if n < size // 3 else 1)]


@command(interrupted=GO_ON)
def main(argv: list[str]) -> int:
    """Prepare the text and train the cells."""
    parser = Parser(prog="train.py", description=str(__doc__).replace("``", ""))
    parser.add_argument("text", type=Path, help="TinyStoriesV2-sample.txt")
    parser.add_argument("--data", type=Path, required=True, help="folder of the prepared corpus")
    parser.add_argument("--store", required=True, help="folder of the store")
    parser.add_argument("--cells", type=int, help="default: all 72")
    parser.add_argument("settings", nargs="*", metavar="SETTING")
    arguments = parser.parse_intermixed_args(argv)
    corpus, _ = prepare(
        Request(form="tinystories", inputs=(str(arguments.text),), out=arguments.data, tokenizer="bpe", vocab_size=2048)
    )
    how = ["dry_run=true" if os.environ.get("PLAN") else "require_clean=true", *arguments.settings]
    fixed = [*MODEL, *MEASURED, f"data.path={corpus.path}", f"store.path={arguments.store}", *how]
    asked = cells(arguments.cells)
    settings = compose(fixed)
    seeds = [{**{f"seeds.{s}": cell[s] for s in GRID}, "seeds.perturb": cell["repeat"]} for cell in asked]
    configs = [load_config(apply(settings, values)) for values in seeds]
    purposes = [Purpose(role="cell", unit=dict(cell), choice="drawn") for cell in asked]
    argv = ["python", "results/language-seeds/train.py", *argv]
    return execute(Designed(configs, Purposes("crossed", purposes)), argv=argv).exit_status


if __name__ == "__main__":
    sys.exit(main())
