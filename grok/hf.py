"""``grok hf {export|import}``: converts language models to and from Hugging Face's formats.

    grok hf export RUN --store STORE --out DIR [--weights best]
    grok hf import DIR --data CORPUS --store STORE

``export`` writes a folder that ``AutoModelForCausalLM`` and ``AutoTokenizer.from_pretrained`` read, or with ``--for
torch`` the last checkpoint, with its optimiser's state, as torch's distributed checkpoint. ``import`` stores the GPT-2
of such a folder as a checkpoint at step 0. ``grok evaluate`` and ``grok generate`` accept its run_id, and ``grok run
... resume.run=RUN_ID resume.step=0`` continues its training.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Final

from grok.commands.command import Parser, command, refuse_unwritable
from grok.commands.trained import find_run
from grok.config import load_config
from grok.config.common import StoreConfig
from grok.config.fields import canonical_json
from grok.config.gpt import IN_EVERY_HASH, IN_NO_HASH, GptConfig
from grok.text.corpus import open_corpus

_EXAMPLES: Final = """\
examples:
  grok hf export 3f2a --store results/store --out gpt2-of-mine --weights best
  grok hf import gpt2/ --data data/openwebtext --store results/store
"""


@command()
def main(argv: list[str]) -> int:
    """Export or import a model and print a summary."""
    arguments = parser().parse_args(argv)
    if arguments.action == "import":
        print(_import(arguments))
    else:
        print(_export(arguments) if arguments.reader == "transformers" else _export_for_torch(arguments))
    return 0


def parser() -> Parser:
    """Return the command's arguments."""
    parser = Parser(
        prog="grok hf",
        description="Convert language models to and from Hugging Face's formats.",
        epilog=_EXAMPLES,
    )
    actions = parser.add_subparsers(dest="action", required=True)
    out = actions.add_parser("export", help="write a run's weights as a folder for transformers")
    out.add_argument("run", metavar="RUN", help="the beginning of a run_id, or a checkpoint folder")
    out.add_argument("--store", metavar="STORE", help=f"the store that RUN is in (default: {StoreConfig().path})")
    out.add_argument("--out", type=Path, required=True, help="folder to write")
    out.add_argument("--weights", default="last", choices=("last", "best", "average"), help="default: last")
    out.add_argument("--data", help="corpus, where the run does not say where its own is")
    out.add_argument(
        "--for",
        dest="reader",
        default="transformers",
        choices=("transformers", "torch"),
        help="torch: the last checkpoint's weights and moments as torch's distributed checkpoint",
    )
    into = actions.add_parser("import", help="store the model of a transformers folder as a run's checkpoint")
    into.add_argument("folder", type=Path, metavar="DIR", help="a folder that transformers wrote")
    into.add_argument("--data", required=True, help="corpus prepared with --tokenizer gpt2 (or the model's own)")
    into.add_argument("--store", required=True, help="the store for the checkpoint")
    return parser


def _export(arguments: argparse.Namespace) -> str:
    import torch

    from grok.gpt.hf import form_of, save_hf_folder

    refuse_unwritable("--out", arguments.out, folder=True)
    run = find_run(arguments.run, arguments.store)
    weights = run.weights(arguments.weights)
    form = form_of(run.model_config)
    corpus = run.corpus(arguments.data)
    model = run.model(weights[arguments.weights], corpus.vocab_size, torch.device("cpu"))
    save_hf_folder(arguments.out, model, corpus.tokenizer)
    code = (arguments.out / "config.json").read_text(encoding="utf-8").find("auto_map") > 0
    return (
        f"{arguments.out}: {sum(p.numel() for p in model.parameters()):,} parameters as {form}, with its tokeniser "
        f"({corpus.tokenizer.kind}), for AutoModelForCausalLM.from_pretrained"
        + (" with trust_remote_code=True (its activation is in the folder's own code)" if code else "")
    )


def _export_for_torch(arguments: argparse.Namespace) -> str:
    """Write what a checkpoint trains on with. Torch's form has a pickle; so a store has safetensors instead."""
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    from grok.checkpoints import load_checkpoint
    from grok.gpt.training.checkpoint import from_checkpoint

    refuse_unwritable("--out", arguments.out, folder=True)
    now, _ = from_checkpoint(load_checkpoint(find_run(arguments.run, arguments.store).folder))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that only one process writes
        save(dict(now.tensors), storage_writer=FileSystemWriter(arguments.out), no_dist=True)
    return f"{arguments.out}: {len(now.tensors)} tensors of step {now.step} as torch's distributed checkpoint"


_ADDED: Final = ("data.mixture_hashes", "data.document_mask", "perturb.ulps", "model.plugin", "optim.plugin",
                 "optim.intervention", "train.loss_plugin")  # fmt: skip
"""Settings that an import never has, and that came later: an import keeps the name that it had before them."""


def _import(arguments: argparse.Namespace) -> str:
    from grok.checkpoints import run_folder, save_checkpoint
    from grok.gpt.hf import load_hf_folder
    from grok.gpt.training.checkpoint import History, capture, copy_weights, to_checkpoint
    from grok.gpt.training.numerics import Numerics
    from grok.gpt.training.trainer import Trainer
    from grok.runs import weights_hash
    from grok.store import StoreWriter

    model, corpus = load_hf_folder(arguments.folder), open_corpus(arguments.data)
    settings = {
        "mode": "gpt",
        "experiment": "gpt/imported",
        "data": {"path": arguments.data},
        "model": asdict(model.config) | {"vocab_size": model.vocab_size},
        "numerics": {"compile": False},
    }
    config = load_config(settings)
    assert isinstance(config, GptConfig)
    trainer = Trainer(config, corpus, Numerics.of(config, "cpu"))
    trainer.model.load_state_dict(model.state_dict())
    run_id = imported_run_id(weights_hash(copy_weights(model)), corpus.hash, config)
    rest = {"data": corpus.hash, "data_path": str(Path(arguments.data).resolve()), "numerics": [], "tries": 0,
            "changes": [], "seconds": 0.0, "started_at": 0.0}  # fmt: skip
    checkpoint = to_checkpoint(run_id, config, capture(trainer, History()), [], rest)
    StoreWriter(arguments.store).close()  # creates the store when it is missing
    save_checkpoint(run_folder(arguments.store, run_id), checkpoint)
    n = sum(p.numel() for p in model.parameters())
    return f"run {run_id} at step 0 in {arguments.store}/checkpoints: {n:,} parameters"


def imported_run_id(weights: str, corpus: str, config: GptConfig) -> str:
    """Return the run_id of an import, from the hashes of its weights and its corpus and from its settings."""
    from grok.gpt.training.checkpoint import deciding_settings

    deciding = {n: v for n, v in deciding_settings(config).items() if n not in _ADDED} | IN_EVERY_HASH | IN_NO_HASH
    return hashlib.sha256(f"{weights}{corpus}{canonical_json(deciding)}".encode()).hexdigest()[:20]


if __name__ == "__main__":
    sys.exit(main())
