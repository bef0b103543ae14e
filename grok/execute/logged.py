"""What a log beside the store has of a run already: all of it, a part that a killed command left, or nothing.

A part that was written from the store is removed, and the run is written anew. What a language model wrote itself
stays: it has every step, which the store's curve lacks.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from grok.gpt.logging.sinks import mlflow_errors

END: Final = b"_hparams_/session_end_info"
"""Name of the last record of a run's TensorBoard file."""
TAIL: Final = 4096
"""Bytes at the end of a file that hold its last record."""
HEAD: Final = 2**16
"""Bytes at the beginning of a file that hold its settings."""
WANDB_END: Final = b"stop_reason"
"""Name of what W&B is told last of a run."""
WRITTEN_FROM: Final = "written_from"
"""First setting of every run that was written from the store: a killed command leaves it, too."""


def in_tensorboard(folder: Path, live: bool) -> bool:
    """Return whether the run's folder has all of it; remove a part. ``live``: the run writes its log itself."""
    files = list(folder.glob("events.out.tfevents.*"))
    if any(is_ended(file) or (live and _is_its_own(file)) for file in files):
        return True
    for file in files:
        file.unlink()
    return False


def is_ended(file: Path) -> bool:
    """Return whether a TensorBoard file has its last record, whole."""
    with file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - TAIL))
        tail = stream.read()
    at = tail.rfind(END)
    # a record has 8 bytes of its data's length, 4 of a checksum, the data (its name near the front), 4 of a checksum
    starts = range(max(0, at - 64), max(0, at))
    return any(int.from_bytes(tail[start : start + 8], "little") == len(tail) - start - 16 for start in starts)


def _is_its_own(file: Path) -> bool:
    """Return whether a language model wrote numbers into a file while it trained."""
    with file.open("rb") as stream:
        head = stream.read(HEAD)
    return WRITTEN_FROM.encode() not in head and any(name in head for name in (b"train/", b"val/"))


def in_wandb_offline(run_id: str, live: bool) -> bool:
    """Return whether W&B's offline folder has all of a run; remove a part."""
    import wandb

    folders = list(Path(wandb.setup().settings.wandb_dir).glob(f"offline-run-*-{run_id}"))
    files = [file for folder in folders for file in folder.glob("run-*.wandb")]
    if any(_is_ended_wandb(folder) for folder in folders) or (live and any(map(_is_its_own, files))):
        return True
    for folder in folders:
        shutil.rmtree(folder)
    return False


def _is_ended_wandb(folder: Path) -> bool:
    """Return whether an offline run has its end, or is on the server already."""
    return any(folder.glob("*.synced")) or any(WANDB_END in file.read_bytes() for file in folder.glob("run-*.wandb"))


def in_wandb_online(run: Any, live: bool) -> bool:
    """Return whether the server has all of the run that ``wandb.init`` took up."""
    is_its_own = live and WRITTEN_FROM not in run.config
    return bool(run.resumed) and (is_its_own or run.summary.get(WANDB_END.decode()) is not None)


def in_mlflow(run_id: str, address: str, experiments: Collection[str], live: bool) -> bool:
    """Return whether one of the experiments has all of a run; remove a part.

    Raises:
        ConfigError: the address cannot be used.
    """
    from mlflow.tracking import MlflowClient

    with mlflow_errors(address):
        client: Any = MlflowClient(address)
        known = [
            experiment.experiment_id for name in experiments if (experiment := client.get_experiment_by_name(name))
        ]
        runs = client.search_runs(known, f"tags.`grok.run_id` = '{run_id}'") if known else []
        own = [run for run in runs if live and run.data.params and WRITTEN_FROM not in run.data.params]
        if own or any(run.info.status in ("FINISHED", "FAILED") for run in runs):
            return True
        for run in runs:
            client.delete_run(run.info.run_id)
    return False
