"""``grok average RUN``: a model whose weights are the mean of a run's kept checkpoints.

The model is stored as a checkpoint with its own run_id, which ``grok evaluate``, ``grok generate`` and
``grok hf export`` accept. The mean of a run's last checkpoints is often better than each (Izmailov et al. 2018).
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path
from typing import Final

from grok.commands.command import Parser, command, number
from grok.config.common import StoreConfig
from grok.errors import CheckpointError, ConfigError

_EXAMPLES: Final = """\
examples:
  grok average 3f2a --store results/store --last 5
  grok average 3f2a --store results/store --steps 6000,8000,10000
"""


@command()
def main(argv: list[str]) -> int:
    """Store the average and print its run_id."""
    print(_average(parser().parse_args(argv)))
    return 0


def parser() -> Parser:
    """Return the command's arguments."""
    parser = Parser(
        prog="grok average",
        description="Store the mean of the weights of a run's kept checkpoints as a new checkpoint.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("run", metavar="RUN", help="the beginning of a run_id")
    parser.add_argument("--store", metavar="STORE", help=f"the store that RUN is in (default: {StoreConfig().path})")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--steps", metavar="STEP,STEP,...", help="steps of the checkpoints (default: all kept ones)")
    which.add_argument(
        "--last", type=number(int, minimum=2), metavar="N", help="the checkpoints of the N largest steps"
    )
    return parser


def _average(arguments: argparse.Namespace) -> str:
    from grok.checkpoints import checkpoint_steps, run_folder, save_checkpoint
    from grok.commands.trained import find_run
    from grok.gpt.training.checkpoint import abandoned_steps, average

    store = arguments.store or StoreConfig().path
    if Path(arguments.run).is_dir():
        raise ConfigError(f"RUN {arguments.run} is a folder: give a run_id, and --store STORE to store the average in")
    run = find_run(arguments.run, store)
    on_disk = sorted(set(checkpoint_steps(run.folder)))
    abandoned = abandoned_steps(run.folder, on_disk, run.origin)
    steps = _chosen(arguments, [step for step in on_disk if step not in abandoned], abandoned)
    run_id = hashlib.sha256(f"{run.run_id}/average/{steps}".encode()).hexdigest()[: len(run.run_id)]
    save_checkpoint(run_folder(store, run_id), average(run.folder, run_id, steps, run.origin))
    return (
        f"run {run_id} in {store}/checkpoints: the mean of run {run.run_id} at {len(steps)} steps, "
        f"{', '.join(map(str, steps))}{_abandoned_words(abandoned)}"
    )


def _abandoned_words(steps: list[int]) -> str:
    """Return what the checkpoints of ``steps`` are that no average takes, or ``""``."""
    return f"; those at steps {', '.join(map(str, steps))} are of a branch that a rollback left" if steps else ""


def _chosen(arguments: argparse.Namespace, kept: list[int], abandoned: list[int]) -> list[int]:
    """Return the steps to average, out of the steps in ``kept``; ``abandoned``: steps that a rollback left.

    Raises:
        ConfigError: ``--steps`` has no whole numbers.
        CheckpointError: fewer than two checkpoints, or a checkpoint is missing.
    """
    steps = kept[-arguments.last :] if arguments.last else kept
    if arguments.steps is not None:
        words = arguments.steps.split(",")
        if not all(word.strip().isdecimal() and len(word) < 20 for word in words):
            raise ConfigError(f"--steps {arguments.steps}: expected whole numbers with commas, such as 6000,8000")
        steps = sorted({int(word) for word in words})
    missing = [step for step in steps if step not in kept]
    if missing or len(steps) < (arguments.last or 2):
        lacking = f"no checkpoint of step {missing[0]}" if missing else f"fewer than {arguments.last or 2} checkpoints"
        raise CheckpointError(
            f"{lacking}; checkpoints of run {arguments.run} are kept at steps {', '.join(map(str, kept)) or 'none'}"
            f"{_abandoned_words(abandoned)}: an average needs two or more, train with checkpoint.keep_every=N"
        )
    return steps


if __name__ == "__main__":
    sys.exit(main())
