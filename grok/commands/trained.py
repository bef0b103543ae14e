"""A trained language model, found by the name of its run or by its folder: settings, weights, the data it knows."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from grok.config.common import StoreConfig
from grok.config.fields import build, settings_of
from grok.config.gpt import ModelConfig
from grok.errors import CheckpointError, ConfigError, DataError, StoreError
from grok.plugins import name_code
from grok.store import open_store
from grok.text.corpus import Corpus, open_corpus, refuse_other_tokenizer

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from grok.checkpoints import Origin
    from grok.gpt.model import GPT

MOMENTS: Final = {"last": "final", "best": "best", "average": "average"}
"""The kinds of weights, each with the moment under which it is kept."""


@dataclass(frozen=True)
class TrainedRun:
    """A language model's run: what is known of it without reading its weights."""

    run_id: str
    folder: Path
    """Holds its kept weights and its checkpoints."""
    settings: Mapping[str, Any]
    """Its settings by dotted name, as far as they are recorded."""
    data_hash: str | None
    data_path: str | None
    origin: Origin
    """What its weights say of their run."""

    @property
    def model_config(self) -> ModelConfig:
        """The model's settings."""
        names = settings_of(ModelConfig)
        settings = {name: self.settings[f"model.{name}"] for name in names if f"model.{name}" in self.settings}
        settings["plugin"] = json.loads(settings.get("plugin") or "{}")
        return build(ModelConfig, settings, "model.")

    def weights(self, only: str | None = None) -> dict[str, dict[str, Tensor]]:
        """Return all weights there are, by ``last``, ``best`` and ``average``: kept ones, else the checkpoint's.

        With ``only`` only those, and the others' files are not read.

        Raises:
            CheckpointError: there are none, or they are damaged.
        """
        from grok.checkpoints import load_weights

        saved = [which for which, moment in MOMENTS.items() if (self.folder / f"weights-{moment}").is_dir()]
        kept = {} if saved else self._checkpoints_weights()
        available = saved or list(kept)
        if only not in (None, *available):
            raise CheckpointError(f"run {self.run_id} kept no {only} weights, but {', '.join(available)}")
        wanted = available if only is None else [only]
        for which in wanted if saved else ():
            try:
                kept[which] = load_weights(self.folder, MOMENTS[which], of=self.origin)
            except CheckpointError as error:
                others = " or ".join(other for other in saved if other != which)
                remedy = f"give --weights {others}" if others else "train the run again with force=true"
                raise CheckpointError(f"{error}; {remedy}") from error
        return {which: kept[which] for which in wanted}

    def _checkpoints_weights(self) -> dict[str, dict[str, Tensor]]:
        from grok.checkpoints import load_checkpoint
        from grok.gpt.training.checkpoint import from_checkpoint

        try:
            now, _ = from_checkpoint(load_checkpoint(self.folder, of=self.origin))
        except CheckpointError as error:
            raise CheckpointError(
                f"run {self.run_id} kept no weights ({error}): train with save=final, or checkpoint.keep=true"
            ) from error
        prefix = "model."
        weights = {"last": {n.removeprefix(prefix): t for n, t in now.tensors.items() if n.startswith(prefix)}}
        weights |= {n: w for n, w in (("best", now.history.best), ("average", now.history.average)) if w}
        return weights

    def corpus(self, path: str | None = None) -> Corpus:
        """Return the corpus at ``path``, or the one the run was trained on; another one than that is said.

        Raises:
            DataError: none is given or recorded, the recorded folder has another corpus by now, or the one at ``path``
                was made with another tokeniser.
        """
        folder = path or self.data_path
        if folder is None:
            raise DataError(f"run {self.run_id} does not say where its data is: give --data DIR")
        corpus = open_corpus(folder)
        if self.data_hash is None or corpus.hash == self.data_hash:
            return corpus
        other = (
            f"{folder} is not the corpus that run {self.run_id} was trained on (data hash {corpus.hash[:20]}, the run's"
            f" {self.data_hash[:20]})"
        )
        if not path:
            raise DataError(f"{other}: prepare that one again, or name a corpus with --data DIR")
        if self.data_path and Path(self.data_path, "manifest.json").is_file():
            own = open_corpus(self.data_path)
            if own.hash == self.data_hash:
                refuse_other_tokenizer(corpus, own)
        print(f"note: {other}", file=sys.stderr)
        return corpus

    def model(self, weights: Mapping[str, Tensor], vocab_size: int, device: torch.device) -> GPT:
        """Return the model with these ``weights``, in evaluation mode.

        Raises:
            DataError: its embedding was made for another vocabulary.
        """
        from grok.gpt.initial import shapes_for
        from grok.gpt.model import GPT, OwnModel
        from grok.numerics import unallocated
        from grok.user import make_module

        config = self.model_config
        vocab_size = config.vocab_size or vocab_size
        if config.plugin:
            module = make_module(config.plugin, 0, shapes_for(config, vocab_size))
            module.load_state_dict(weights, strict=False)  # a buffer is made with the module
            return OwnModel(module.to(device), config, vocab_size=vocab_size)
        with unallocated():
            model = GPT(config, vocab_size=vocab_size)
        rows, expected = len(weights["token_embedding.weight"]), len(model.token_embedding.weight)
        if rows != expected:
            raise DataError(
                f"run {self.run_id} has an embedding of {rows:,} rows, this data's tokeniser needs {expected:,}:"
                " it is not the tokeniser that the model was trained with"
            )
        model = model.to(next(iter(weights.values())).dtype).to_empty(device=device)
        if config.tied:
            model.head.weight = model.token_embedding.weight
            weights = {**weights, "head.weight": weights["token_embedding.weight"]}
        model.load_state_dict(weights)
        return model.eval()


def device_of(name: str) -> torch.device:
    """Return the device that ``--device`` names; ``auto`` is CUDA where there is one.

    Raises:
        ConfigError: CUDA is asked for and there is none.
    """
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: there is no CUDA device; give --device cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def find_run(run: str, store: str | None) -> TrainedRun:
    """Return the run that ``run`` names: a checkpoint folder, or the beginning of one run_id in ``store``.

    Without a ``store`` it is looked for where runs are stored by default.

    Raises:
        CheckpointError, StoreError: nothing or more than one run has that name, or it is no language model's.
    """
    folder = Path(run)
    if run and folder.is_dir():
        home = folder.resolve().parent.parent
        is_home = folder.resolve().parent.name == "checkpoints" and (home / "runs").is_dir()
        return _of(folder, folder.resolve().name, home if is_home else None)
    if not re.fullmatch(r"[0-9A-Za-z._-]+", run) or not (store or Path(StoreConfig().path).is_dir()):
        raise CheckpointError(
            f"{run!r} is neither a folder nor a run_id: give the folder of a run's checkpoints, or --store and a run_id"
        )
    store = store or StoreConfig().path
    stored = open_store(store).table("runs", None, ["run_id", "mode"]).to_pylist()
    language = {row["run_id"] for row in stored if row["mode"] == "gpt"}
    in_flight = {path.name for path in Path(store, "checkpoints").glob("*") if path.is_dir()}
    matching = sorted(
        name for name in language | (in_flight - {row["run_id"] for row in stored}) if name.startswith(run)
    )
    if len(matching) != 1:
        others = sum(row["mode"] != "gpt" and row["run_id"].startswith(run) for row in stored)
        raise StoreError(
            f"run {run} in {store} fits {', '.join(matching[:5]) or 'none'} of the {len(language)} language models "
            f"and {others} runs of another mode: expected the beginning of one run_id"
        )
    return _of(Path(store, "checkpoints", matching[0]), matching[0], Path(store))


def _of(folder: Path, run_id: str, store: Path | None) -> TrainedRun:
    from grok.checkpoints import Origin, load_checkpoint

    rows = open_store(store).table("runs", [run_id], None).to_pylist() if store is not None else []
    if rows:
        row = rows[0]
        settings = {name.removeprefix("config."): v for name, v in row.items() if name.startswith("config.")}
        origin = Origin(run_id, row["trajectory_id"], row["numerics"])
        return TrainedRun(run_id, folder, settings, row["data_hash"], settings["data.path"], origin)
    origin = Origin(run_id if store is not None else None)  # a folder outside of a store has any name
    state = load_checkpoint(folder, of=origin).state
    return TrainedRun(run_id, folder, state["settings"], state["data"], state.get("data_path"), origin)


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add what names a trained run, where its data is, and the code of a model of the user's own."""
    parser.add_argument("run", metavar="RUN", help="a run's checkpoint folder, or the start of its run_id")
    parser.add_argument("--store", metavar="STORE", help=f"the store that RUN is in (default: {StoreConfig().path})")
    parser.add_argument("--data", metavar="DIR", help="prepared corpus (default: the one it was trained on)")
    parser.add_argument(
        "--device", default="auto", choices=["auto", "cpu", "cuda"], help="auto (default): a GPU if there is one"
    )
    parser.add_argument("--model", metavar="MODULE.NAME", help="code of your own that the run's model.plugin names")
    parser.add_argument("--plugin-path", metavar="DIR", default=".", help="the folder that it is in (default: .)")


def name_own_code(arguments: argparse.Namespace) -> None:
    """Let the code that :func:`add_run`'s options name be imported.

    Raises:
        ConfigError: it is not to be found.
    """
    name_code(arguments.plugin_path, [arguments.model] if arguments.model else [])
