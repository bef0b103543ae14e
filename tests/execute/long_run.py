"""``python -m tests.execute.long_run [--steps N] [--kills K] [--out DIR]``: one long run, killed and never killed.

Trains a run of 100,000 steps twice: left alone, and killed with SIGKILL ten times at
random moments, each time given again. Both must end with the same bits: weights, both
moments of the optimiser, the curve at every step.

Writes DIR/long_run.json (default results/faults). Exit status 0 when they are equal.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from grok.checkpoint import checkpoint_steps
from grok.store import Provenance, open_store
from tests.doors.conftest import TINY, command, start
from tests.execute.content import content
from tests.execute.kills import end_all, kill_once, workers_of


def settings(steps: int) -> list[str]:
    """Return a run whose every hundredth part leaves a checkpoint, evaluated a thousand times."""
    small = [word for word in TINY if not word.startswith(("train.steps", "eval"))]
    often = [f"train.steps={steps}", f"eval.every={steps // 1000}", f"checkpoint.every={steps // 100}"]
    return [*small, *often, "checkpoint.keep=true", "seed=5", "store.path=S"]


def final_tensors(store: Path, steps: int) -> dict[str, torch.Tensor]:
    """Return weights and moments as the run's last checkpoint holds them."""
    (folder,) = (store / "checkpoints").iterdir()
    assert checkpoint_steps(folder)[-1] == steps
    (file,) = [f for f in folder.rglob("*.safetensors") if str(steps) in f.parent.name]
    return load_file(file)


def newest(store: Path) -> int:
    """Return the step of the newest checkpoint, 0 before the first."""
    return max([step for folder in (store / "checkpoints").glob("*") for step in checkpoint_steps(folder)], default=0)


def killed_and_not(folder: Path, *, steps: int, kills: int, seed: int) -> dict[str, Any]:
    """Train both ways below ``folder``; return what was found.

    Raises:
        AssertionError: a run did not end, or ended before it was killed so often.
    """
    alone, killed = folder / "alone", folder / "killed"
    for here in (alone, killed):
        here.mkdir(parents=True)
    ended = command(*settings(steps), folder=alone, timeout=3600)
    assert ended.status == 0, ended
    seconds = float(open_store(alone / "S").runs()["seconds"].iloc[0])
    chance = random.Random(seed)
    met: list[int] = []
    for _ in range(kills):
        process = start(*settings(steps), folder=killed)
        try:
            while process.poll() is None and newest(killed / "S") == (met[-1] if met else 0):
                time.sleep(0.02)  # until it is on its way again
            time.sleep(chance.uniform(0.0, 0.12 * seconds))
            assert process.poll() is None, f"it ended before kill {len(met) + 1} of {kills}"
            kill_once(process, "SIGKILL of everything", chance)
        finally:
            end_all(process, workers_of(process))
        met.append(newest(killed / "S"))
    ended = command(*settings(steps), folder=killed, timeout=3600)
    assert ended.status == 0, ended
    stored = {name: open_store(here / "S").runs().iloc[0] for name, here in (("alone", alone), ("killed", killed))}
    tensors = {name: final_tensors(here / "S", steps) for name, here in (("alone", alone), ("killed", killed))}
    return {
        "steps": steps,
        "kills": kills,
        "seconds": round(seconds, 1),
        "went_on_from": met,
        "weights_hash": {name: row["weights_hash"] for name, row in stored.items()},
        "evaluations": len(open_store(alone / "S").curves()),
        "rows_equal": content(alone / "S") == content(killed / "S"),
        "checkpoints_equal": tensors["alone"].keys() == tensors["killed"].keys()
        and all(torch.equal(tensors["alone"][n], tensors["killed"][n]) for n in tensors["alone"]),
        "tensors": sorted(tensors["alone"]),
    }


def main(argv: list[str] | None = None) -> int:
    """Train, write what was found and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.execute.long_run", description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/faults"))
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="long-run-") as folder:
        found = killed_and_not(Path(folder), steps=given.steps, kills=given.kills, seed=given.seed)
    here = Provenance.collect().on_this_machine()
    words = f"python -m tests.execute.long_run --steps {given.steps} --kills {given.kills} --seed {given.seed}"
    machine = {"git_commit": here.git_commit, "git_dirty": here.git_dirty, "torch_version": here.torch_version}
    text = json.dumps({"command": words, "date": time.strftime("%Y-%m-%d"), **machine, **found}, indent=1)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "long_run.json").write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0 if found["rows_equal"] and found["checkpoints_equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
