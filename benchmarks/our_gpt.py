"""Our GPT training loop as ``benchmarks.gpt`` measures it, with the settings of the plain one."""

from __future__ import annotations

from benchmarks.plain_gpt import Shape
from grok.config import load_config
from grok.config.gpt import GptConfig
from grok.execute.worker import keep_freed_memory, use_large_pages
from grok.gpt.training.checkpoint import History
from grok.gpt.training.numerics import Numerics
from grok.gpt.training.parallel import Ranks
from grok.gpt.training.trainer import Trainer
from grok.text.corpus import Corpus


def our_config(shape: Shape, corpus: Corpus, threads: int, steps: int, precision: str, compiled: bool) -> GptConfig:
    """Return the settings of the same model and schedule."""
    config = load_config(
        {
            "mode": "gpt",
            "experiment": "benchmark",
            "precision": precision,
            "data": {"path": str(corpus.path)},
            "model": {
                "layers": shape.layers,
                "d_model": shape.width,
                "heads": shape.heads,
                "context": shape.tokens,
                "bias": False,
                "activation": "gelu",
            },
            "optim": {"lr": shape.lr, "betas": [0.9, 0.99], "warmup_steps": shape.warmup},
            "train": {"steps": steps, "batch_size": shape.batch, "threads": threads},
            "numerics": {"compile": compiled},
        }
    )
    assert isinstance(config, GptConfig)
    return config


class OurLoop:
    """Our step, as in a worker."""

    def __init__(
        self, shape: Shape, corpus: Corpus, device: str, threads: int, steps: int, precision: str, compiled: bool
    ) -> None:
        keep_freed_memory()
        use_large_pages()
        self.config = our_config(shape, corpus, threads, steps, precision, compiled)
        self.trainer = Trainer(self.config, corpus, Numerics.of(self.config, device), Ranks.of_this_process())
        self.model = self.trainer.model.loss
        self.waits: list[float] = []
        self.history = History()

    def step(self) -> None:
        point, _ = self.trainer.update()
        self.waits.append(point.data_wait)
        self.history.log.append(point)
