"""What can be measured of a run only when it has ended: its kept weights, by the key frequencies of the last ones."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

from grok.config import ArithmeticConfig, RunConfig
from grok.errors import CheckpointError
from grok.execute.planned import PlannedRun
from grok.records import RunResult

if TYPE_CHECKING:
    from torch import Tensor


def is_measured_at_kept_weights(config: RunConfig) -> bool:
    """Return whether a run's curve gets measurements of the weights that it keeps on the way."""
    if not isinstance(config, ArithmeticConfig) or "circuit" not in config.eval.metrics:
        return False
    return config.checkpoint.keep_every > 0 and "final" in config.save


def measure_kept_weights(result: RunResult, run: PlannedRun, store_path: str) -> list[str]:
    """Add restricted and excluded loss by the final weights' key frequencies to the curve of ``result``.

    They are measured where ``eval.metrics`` has ``circuit`` and weights were kept, on the way and at the end. A
    network that has not generalised has no circuit, and so no key frequencies. Returns one line for each step
    whose weights cannot be read.
    """
    config, final = run.config, result.tensors.get("final")
    every = config.checkpoint.keep_every
    if not is_measured_at_kept_weights(config) or final is None:
        return []
    if result.status != "completed" or result.grokked_step is None:
        return []
    assert isinstance(config, ArithmeticConfig)
    from grok.arithmetic.final_frequencies import add_final_losses
    from grok.checkpoint import Origin, checkpoint_steps, load_checkpoint, run_folder

    folder, notes = run_folder(store_path, result.run_id), []
    of = Origin(result.run_id, run.identity.trajectory_id, result.numerics)

    def kept() -> Iterator[tuple[int, dict[str, Tensor]]]:
        for step in checkpoint_steps(folder):
            if step % every:
                continue
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # the note says it
                    tensors = load_checkpoint(folder, step, of=of).tensors
            except CheckpointError as error:
                notes.append(f"Not measured: weights of run {result.run_id} at step {step}: {error}")
                continue
            group = "parameters."
            yield step, {n.removeprefix(group): t for n, t in tensors.items() if n.startswith(group)}

    add_final_losses(config, result.curve, dict(final), kept())
    return notes
