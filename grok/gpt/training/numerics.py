"""How numbers are computed: device, precision, threads, compilation, and the tag with all of these.

Runs of one trajectory and one tag must have equal bits. So everything here follows
from explicit settings, the model's shape and the machine, never from load or timing.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from grok.config.gpt import GptConfig
from grok.gpt.parts import shares_keys
from grok.gpt.schedules import refuse_changing_shapes
from grok.numerics import (
    allow_uncompiled,
    choose_path,
    compiler,
    processor_model,
    product_precision,
    product_tag,
    with_whole_cache,
)
from grok.processes import Rank, cores_of_a_rank
from grok.records import numerics_tag

LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True)
class Numerics:
    """The resolved way of computing one run."""

    device: torch.device
    precision: str
    threads: int
    compile: bool
    auto_fallback: bool
    micro_batch: int
    devices: int = 1
    """Processes that share each batch."""
    sharded: bool = False
    """Whether each process keeps only a shard of weights and moments."""
    products: str = "plain"
    """The path of products with a weight, of :mod:`grok.numerics`."""
    sums: str | None = None
    """Order in which gradients are summed, where it is another one than that of earlier versions: see ``_sums``."""
    fused_dropout: bool = False
    """Whether the fused kernel applies dropout to the attention weights."""
    grouped: bool = False
    """Whether the fused kernel reads keys and values that several queries share, without copies."""

    @classmethod
    def of(cls, config: GptConfig, device: str) -> Numerics:
        """Return the numerics of ``config`` on ``device``.

        Raises:
            ConfigError: compilation with a batch whose shape changes.
        """
        micro = config.train.micro_batch or config.train.batch_size
        ranks = Rank.of_this_process().size
        refuse_changing_shapes(config, ranks)
        return cls(
            device=torch.device(device),
            precision=config.precision,
            threads=config.train.threads or cores_of_a_rank(),
            compile=config.numerics.compile and not config.model.plugin,
            auto_fallback=config.numerics.auto_fallback,
            micro_batch=micro,
            devices=ranks,
            sharded=ranks > 1 and config.train.keeps is not None,
            sums=_sums(config, micro, ranks, on_cpu=device == "cpu"),
            products=_products(config) if device == "cpu" and not config.model.plugin else "plain",
            grouped=config.model.kv_heads is not None
            and shares_keys(torch.device(device))
            and config.model.softmax == "fused"
            and not config.model.dropout_attention,
            fused_dropout=device.startswith("cuda")
            and ranks == 1
            and config.model.drops_in_kernel(config.train.recompute),
        )

    @property
    def dtype(self) -> torch.dtype:
        """The parameters' dtype: float32, whatever the activations are, or float64 for tests of equality."""
        return torch.float64 if self.precision == "float64" else torch.float32

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context of a forward pass: activations in the low precision, softmax and norms in float32."""
        if self.precision in LOW:
            return torch.autocast(self.device.type, LOW[self.precision])
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Set threads, float32 products and deterministic kernels for a run, and restore the former values."""
        threads = torch.get_num_threads()
        deterministic = torch.are_deterministic_algorithms_enabled()
        filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
        torch.set_num_threads(self.threads)
        if self.device.type == "cuda":
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)
            torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        try:
            with product_precision(self.precision):
                yield
        finally:
            torch.set_num_threads(threads)
            torch.use_deterministic_algorithms(deterministic)
            torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]

    def tag(self, *, compiled: bool | None = None) -> str:
        """Return the numerics tag; ``compiled`` says whether the compiled code runs if a fallback is allowed."""
        on = self.compile if compiled is None else compiled
        on_cpu = self.device.type == "cpu"
        kind = "blocks" if self.sharded else "whole" if on_cpu else "yes"
        parts: dict[str, object] = {
            "device": self.device.type,
            "model": device_model(self.device),
            "isa": torch.backends.cpu.get_cpu_capability() if on_cpu else None,
            "threads": self.threads if on_cpu else None,
            # the tags of plain products, and of all else that is usual, never had an entry of it
            "products": None if self.products == "plain" else product_tag(self.products),
            "dropout": "fused" if self.fused_dropout else None,
            "attention": "grouped" if self.grouped else None,
            "engine": "gpt",
            "compiled": kind if on else "no",
            "compiler": compiler() if on and on_cpu else None,
            "precision": self.precision,
            "micro": self.micro_batch,
            "devices": self.devices if self.devices > 1 else None,
            "parallel": "fsdp" if self.sharded else None,
            "sums": self.sums,
            "torch": torch.__version__,
        }
        return numerics_tag({name: value for name, value in parts.items() if value is not None})


def _products(config: GptConfig) -> str:
    """Return the path of products on a CPU: ``auto`` is plain on Zen 3 and 4 (family 25), where oneDNN gains nothing.

    A step of 4 layers of 128 took 1.04 times the time with oneDNN on Zen 4, one of 2 layers of 384 0.93 times.
    """
    if config.numerics.path == "auto" and re.search(r"^AMD .* 25-\d+-\d+$", processor_model()):
        return "plain"
    return choose_path(config.numerics.path, config.precision)


def _sums(config: GptConfig, micro: int, ranks: int, *, on_cpu: bool) -> str | None:
    """Return how ``ranks`` processes sum gradients, for the tag.

    ``once``: shards of several micro-batches are summed over the processes once a step. ``fixed``: three or more
    replicas never change DDP's buckets, so that a resumed run adds in the same order. Two terms have one sum.
    """
    if config.train.keeps is not None:
        once = config.train.keeps != "nothing" and config.train.batch_size > micro * ranks
        return "once" if ranks > 1 and once else None
    one_graph = config.numerics.compile and on_cpu and not config.model.plugin
    return "fixed" if ranks > 2 and not one_graph else None


class Compiled:
    """A function compiled at its first call; says so, or stops with the setting to use, when that fails."""

    def __init__(
        self,
        function: Callable[..., Any],
        numerics: Numerics,
        compiler: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
    ) -> None:
        self.eager, self.numerics = function, numerics
        self.compiler = compiler or functools.partial(torch.compile, dynamic=False, fullgraph=True)
        self.on = numerics.compile
        self.function = function
        self.proven = not self.on

    def __call__(self, *args: Any) -> Any:
        if self.proven:
            return self.function(*args)
        try:
            self.function = self.compiler(self.eager)
            result = with_whole_cache(lambda: self.function(*args))
        except torch.OutOfMemoryError:  # another path would not need less memory
            raise
        except Exception as error:
            allow_uncompiled(error, auto_fallback=self.numerics.auto_fallback)
            self.function, self.on = self.eager, False
            result = self.function(*args)
        self.proven = True
        return result


def device_model(device: torch.device) -> str:
    """Return the GPU's name, or the processor's name with its family, model and stepping."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else processor_model()
