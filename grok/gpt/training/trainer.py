"""The training state of one run: model, optimiser, counters. It makes one update or one evaluation at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import get_total_norm

from grok.config.gpt import EVENTS, PASSING, GptConfig, OptimConfig
from grok.errors import ConfigError
from grok.gpt.costs import count_parameters, peak_of_device, train_flops_per_token
from grok.gpt.initial import build_model
from grok.gpt.model import GPT
from grok.gpt.parts import Masks, draw_masks, kernels_seeded, places
from grok.gpt.schedules import Piece, learning_rate, pieces
from grok.gpt.training.batches import Batches, Texts, validation_starts
from grok.gpt.training.numerics import Compiled, Numerics, device_model
from grok.gpt.training.parallel import Loss, Ranks, local, replicate, shard, training_pass
from grok.gpt.training.stability import Branch, Watch
from grok.numerics import OneGraph
from grok.processes import peak_of_process
from grok.records import VAL_ACC, VAL_LOSS, CurvePoint, StepPoint
from grok.runs import EMBEDDINGS, component
from grok.streams import Stream
from grok.text.corpus import Corpus, check_vocabulary
from grok.text.windows import gather
from grok.user import STEP, UPDATE, Intervention, OwnOptimizer, drawing, own_code_of

# The gradient of a micro-batch, by autograd or compiled. On a CPU compiled loss and gradient are one graph.


class Gradient:
    """Adds the gradient of the mean loss of a piece of a batch to that of the parameters.

    On a CPU forward and backward are compiled as one graph, which does not use autograd at run time. On a GPU they
    are compiled separately, so that torch can choose what to keep between them by its memory. Several processes sum
    their gradients: DDP and FSDP2 do so during the backward pass; after the one graph of a CPU they are summed at once.
    """

    def __init__(self, model: GPT, numerics: Numerics, ranks: Ranks, *, keeps: str | None = "gradients") -> None:
        """``keeps``: of ``train.parallel``, for a sharded model."""
        self.keeps = keeps
        self.model, self.numerics, self.ranks = model, numerics, ranks
        self.parameters = dict(model.named_parameters())
        self.places = list(places(model.config, 1, 1))
        self.whole = numerics.compile and numerics.device.type == "cpu" and not numerics.sharded
        if self.whole:
            self._loss = Compiled(self._loss_and_gradients, numerics, OneGraph)
        else:
            # of a sharded model, each block is compiled separately
            self._loss = Compiled(model.loss, numerics, (lambda function: function) if numerics.sharded else None)
        self.eager: Callable[..., Tensor] = model.loss if self.whole else self._loss
        self.replicas: DistributedDataParallel | None = None
        if ranks.size > 1 and not self.whole and not numerics.sharded:
            self.replicas = replicate(Loss(model, self._loss), numerics)
            self.eager = self.replicas

    @property
    def compiled(self) -> bool:
        """Whether the compiled code runs: false also if compilation failed and ``numerics.auto_fallback`` is on."""
        return self._loss.on

    def add(self, x: Tensor, y: Tensor, masks: Masks, *, share: float, scale: float, last: bool = True) -> Tensor:
        """Add the gradient of ``share * scale`` times the mean loss of ``y`` [B, T] after ``x`` [B, T].

        ``last``: it is this process's last piece of a batch, after which the processes sum their gradients.
        Returns ``share`` times the mean loss, without a gradient.
        """
        if self.whole and self._loss.on:
            factor = torch.tensor(share * scale, dtype=self.numerics.dtype, device=x.device)
            tensors = [masks[name] for name in self.places] + [p.detach() for p in self.parameters.values()]
            loss, *gradients = self._loss(x, y, factor, *tensors)
            if self._loss.on:
                for p, gradient in zip(self.parameters.values(), gradients, strict=True):
                    p.grad = gradient if p.grad is None else p.grad.add_(gradient)
                total: Tensor = loss * share
                return total
            # compilation failed in this call: its incomplete gradients are dropped
        waiting: AbstractContextManager[None] = nullcontext()
        if self.numerics.sharded:
            waiting = training_pass(self.model, last=last, keeps=self.keeps)
        elif self.replicas is not None and not last:
            waiting = self.replicas.no_sync()
        with waiting, self.ranks.watched():
            with self.numerics.autocast():
                loss = self.eager(x, y, masks) * share
            (loss * scale).backward()
        detached: Tensor = loss.detach()
        return detached

    def sum_over_ranks(self) -> None:
        """Sum the gradients over the processes if the backward pass did not do it."""
        if self.ranks.size > 1 and self.whole:
            grads = [p.grad for p in self.parameters.values() if p.grad is not None]
            flat = self.ranks.sum(torch.cat([g.reshape(-1) for g in grads]))
            for grad, total in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
                grad.copy_(total.view_as(grad))

    def _loss_and_gradients(self, x: Tensor, y: Tensor, factor: Tensor, *tensors: Tensor) -> list[Tensor]:
        """Return [mean loss, its gradient times ``factor`` for each parameter] for [*masks, *parameters]."""
        masks = dict(zip(self.places, tensors, strict=False))
        leaves = [p.detach().requires_grad_() for p in tensors[len(self.places) :]]
        named = dict(zip(self.parameters, leaves, strict=True))
        with self.numerics.autocast():
            loss = functional_call(Loss(self.model), {f"model.{n}": p for n, p in named.items()}, (x, y, masks))
        gradients = torch.autograd.grad(loss * factor, leaves)
        # the fused optimiser needs gradients in the memory layout of their parameters, as autograd makes them
        return [loss.detach(), *(g.contiguous() for g in gradients)]


# How much of its devices a run uses: the share of their peak FLOP/s (MFU), and the memory.


class Usage:
    """The FLOPs of a run's model and the peak of its devices."""

    def __init__(self, config: GptConfig, vocab_size: int, numerics: Numerics) -> None:
        self.model, self.device = config.model, numerics.device
        self.parameters = count_parameters(config.model, vocab_size)
        on_gpu = numerics.device.type == "cuda"
        if on_gpu:  # the peak of an earlier run in this process may be higher
            torch.cuda.reset_peak_memory_stats(numerics.device)
        known = on_gpu and not config.model.plugin  # the FLOPs of a model of the user's own are not
        peak = peak_of_device(device_model(numerics.device), numerics.precision) if known else None
        self.peak = math.nan if peak is None else numerics.devices * peak

    def mfu(self, tokens_per_second: float, context: int) -> float:
        """Return the share of the devices' peak FLOP/s that the model uses, with sequences of ``context`` tokens.

        As in PaLM, recomputed FLOPs are not counted. On a CPU it is NaN, because a CPU's peak depends on its load and
        clock and is not in the table.
        """
        return train_flops_per_token(self.model, self.parameters, context) * tokens_per_second / self.peak

    def peak_memory(self) -> float:
        """Return the peak memory so far in bytes: of tensors on a GPU, else of this process."""
        if self.device.type == "cuda":
            return float(torch.cuda.max_memory_allocated(self.device))
        return float(peak_of_process())


# AdamW with decay groups (also with 8-bit moments), and its statistics.
#
# Sources: Loshchilov & Hutter 2019 (AdamW); Radford et al. 2019 and Brown et al. 2020 (decay on matrices only);
# Dettmers et al. 2022 (8-bit moments).

BLOCK_OF_8_BITS: Final = 256
"""Elements that share a scale in bitsandbytes' 8-bit moments."""


def build_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """Return the optimiser that ``optim.kind`` names; AdamW is fused into one kernel for all tensors.

    Raises:
        ConfigError: 8-bit moments without the `bitsandbytes` package.
    """
    betas = (config.betas[0], config.betas[1])
    decays = [p for p in model.parameters() if config.decay == "all" or p.dim() >= 2]  # matrices and embeddings, or all
    rest = [p for p in model.parameters() if config.decay == "matrices" and p.dim() < 2]
    groups = [{"params": decays, "weight_decay": config.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    if config.kind == "adamw8bit":
        try:
            from bitsandbytes.optim import AdamW8bit
        except ImportError as error:
            raise ConfigError(
                "optim.kind=adamw8bit needs the bitsandbytes package: pip install bitsandbytes, or use optim.kind=adamw"
            ) from error
        eight_bit: torch.optim.Optimizer = AdamW8bit(groups, lr=config.lr, betas=betas, eps=config.eps)
        return eight_bit
    return torch.optim.AdamW(groups, lr=config.lr, betas=betas, eps=config.eps, fused=True)


def nonzero(tensors: list[Tensor]) -> Tensor:
    """Return the number of elements of ``tensors`` that are not zero."""
    if tensors[0].is_cuda:
        # one kernel for each tensor: the norm of order 0, exact in float64 up to 2**53
        return torch.stack([torch.linalg.vector_norm(t, 0, dtype=torch.float64) for t in tensors]).sum()
    return torch.stack([torch.count_nonzero(t) for t in tensors]).sum()


def sum_and_largest(moments: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the sum and the largest of all second moments."""
    held = [v for v in moments if v.numel()]
    if moments[0].is_cuda and moments[0].is_floating_point():
        # few kernels: second moments are never negative, so sums are L1 norms
        totals, tops = (torch._foreach_norm(held, order) for order in (1, torch.inf))
        return torch.stack(list(totals)).sum(), torch.stack(list(tops)).max()
    return torch.stack([v.sum() for v in moments]).sum(), torch.stack([v.max() for v in held]).max()


def second_moments(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return AdamW's second moments as numbers, empty before the first update."""
    # the order of the groups, which a resume does not change
    states = [optimizer.state[p] for g in optimizer.param_groups for p in g["params"] if p in optimizer.state]
    key = "state2" if any("state2" in state for state in states) else "exp_avg_sq"
    return [_numbers(state, key) for state in states if key in state]


def _numbers(state: dict[str, Any], key: str) -> Tensor:
    """Return a moment. Codes of 8 bits are decoded: the value in a table times the largest value of the block."""
    moment: Tensor = state[key]
    if moment.dtype != torch.uint8:
        return moment
    number = key.removeprefix("state")
    values = state[f"qmap{number}"][moment.flatten().int()]
    largest: Tensor = state[f"absmax{number}"]
    block = BLOCK_OF_8_BITS
    padded = nn.functional.pad(values, (0, len(largest) * block - len(values))).view(len(largest), block)
    return (padded * largest[:, None]).flatten()[: moment.numel()].view_as(moment)


def state_tensors(optimizer: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """Return the state of ``parameter`` in ``optimizer`` as tensors; bitsandbytes has its step count as a number."""
    state = optimizer.state.get(parameter, {})
    return {key: value if isinstance(value, Tensor) else torch.tensor(value) for key, value in state.items()}


def state_of(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Return the state of a parameter in the form of ``optimizer``, from its tensors."""
    counts = type(optimizer).__module__.startswith("bitsandbytes")
    return {key: int(value) if counts and key == "step" else value for key, value in tensors.items()}


# Counters of one run, and its loss scale.

SCALE_START: Final = 2.0**16
SCALE_GROWTH_STEPS: Final = 2000
SCALE_MAX: Final = 2.0**24
"""Loss scaling in fp16 (Micikevicius et al. 2018): halved on overflow, doubled after that many good steps."""


@dataclass(slots=True)
class Counters:
    """Counters of a run."""

    step: int = 0
    tokens: int = 0
    skipped: int = 0
    not_finite: int = 0
    adam_steps: int = 0
    scale: float = 1.0
    scale_good: int = 0

    def overflowed(self, config: GptConfig, grad_norm: float) -> bool:
        """Return whether fp16 gradients with this norm call for a smaller loss scale, and the least is not reached."""
        scaled = config.precision == "fp16" and self.scale > config.stability.least_scale
        return scaled and not math.isfinite(grad_norm)

    def rescale(self, config: GptConfig, overflow: bool) -> None:
        """Halve the loss scale after an overflow, double it after many good steps; only fp16 has one."""
        if config.precision != "fp16":
            return
        if overflow:
            self.scale, self.scale_good = max(self.scale / 2, config.stability.least_scale), 0
            return
        self.scale_good += 1
        if self.scale_good == SCALE_GROWTH_STEPS:
            self.scale, self.scale_good = min(self.scale * 2, SCALE_MAX), 0


def start_scale(config: GptConfig) -> float:
    """Return the initial loss scale of a run's precision."""
    return SCALE_START if config.precision == "fp16" else 1.0


# The training state of one run: model, optimiser and counters. It makes one update or one evaluation at a time.


class Trainer:
    """The model of one run with its updates and evaluations."""

    def __init__(
        self, config: GptConfig, corpus: Corpus | Texts, numerics: Numerics, ranks: Ranks | None = None
    ) -> None:
        """``corpus``: everything that the run reads, or the only corpus."""
        texts = corpus if isinstance(corpus, Texts) else Texts.of(corpus)
        self.config, self.corpus, self.numerics, self.ranks = config, texts.corpus, numerics, ranks or Ranks()
        self.seeds = config.stream_seeds()
        vocab_size = config.model.vocab_size or self.corpus.vocab_size
        check_vocabulary(self.corpus, vocab_size)
        self.model: GPT = build_model(
            config,
            vocab_size=vocab_size,
            device=numerics.device,
            dtype=numerics.dtype,
            share=(lambda model: shard(model, numerics)) if numerics.sharded else None,
        )
        self.model.use(
            products=numerics.products, recompute=config.train.recompute, fused_dropout=numerics.fused_dropout
        )
        self.model.document_end = self.corpus.eot_id if config.data.document_mask else None
        named: dict[str, Tensor] = dict(self.model.named_parameters())
        self.by_name, optim = named, config.optim
        """The parameters by name."""
        self.parameters = list(named.values())
        with self._draws("dropout", 0, "update"):
            self.own_optimizer = OwnOptimizer(optim.plugin, optim, named) if optim.plugin else None
            self.intervention = Intervention(optim.intervention, named) if optim.intervention else None
        self.own_parts = [part for part in (self.own_optimizer, self.intervention) if part is not None]
        self.optimizer = self.own_optimizer.optimizer if self.own_optimizer else build_optimizer(self.model, optim)
        self.gradient = Gradient(self.model, numerics, self.ranks, keeps=config.train.keeps)
        self.batches = Batches(config, texts.sources)
        self.validation: dict[str, tuple[NDArray[Any], NDArray[np.int64]]] = {}
        """Tokens and window starts of each validation set; the name of the main one is ``""``."""
        for name, (validated, split) in {"": (self.corpus, "val"), **texts.validation}.items():
            tokens = validated.tokens(split)
            self.validation[name] = (tokens, validation_starts(len(tokens), config.model.context, config.eval.windows))
        self.watch, self.branch = Watch(config.stability, self.batches.per_epoch()), Branch()
        self.counters = Counters(scale=start_scale(config))
        self.batch_sum: int | None = None
        """Checksum of the last batch's tokens."""
        self.elements = sum(p.numel() for p in self.parameters)
        self.usage = Usage(config, vocab_size, numerics)
        self.late: tuple[StepPoint, Tensor] | None = None
        """The log of a step, and the norms that it still lacks, on the device: see ``logs_late``."""

    def update(self) -> tuple[StepPoint, str | None]:
        """Make the next update; return its log, and the event that ends the run or rolls it back, if there is one.

        On a GPU the log is complete after the next update, or after ``settle``.

        If the policy acts on an event (``StabilityConfig.acts_on``), the update is not made. A step is skipped if its
        fp16 gradients overflow, or under ``stability.policy=skip_step`` for the events of ``PASSING``.
        """
        began = time.perf_counter()
        k = self.counters.step + 1
        x, y = self.batch(k)
        waited = time.perf_counter() - began

        with own_code_of(self, *STEP, ahead=1):
            loss = self.gradients(k, x, y)
        scale = self.counters.scale
        grads = self.unscale()
        norm = self._norm(grads)
        zeros = 1 - self._sum(nonzero(grads)) / self.elements
        train_loss, grad_norm, zeros_in_grads = self._fetch([loss.double(), norm.double(), zeros.double()])

        stability = self.config.stability
        overflow = math.isfinite(train_loss) and self.counters.overflowed(self.config, grad_norm)
        event = "skipped" if overflow else self._agreed(self.watch.see(train_loss, grad_norm, self.batch_sum))
        wrong = event if event is not None and not overflow and stability.acts_on(event) else None
        rate = learning_rate(self.config, k) * self.branch.lr_factor
        self.counters.step = k
        self.counters.tokens += x.numel()
        if not overflow and wrong is None:
            self.apply(norm, rate)
        else:
            self.counters.skipped += 1
            self.counters.not_finite += event in ("not_finite", "skipped")
            if overflow or (stability.policy == "skip_step" and event in PASSING):
                wrong = "skip_limit" if self.watch.skip(k) else None
        self.counters.rescale(self.config, overflow)
        point = self._log(k, train_loss, rate, grad_norm, zeros_in_grads, scale)
        if not logs_late(self.numerics):
            self.settle()
        point.event = wrong or event
        seconds = time.perf_counter() - began
        point.tokens_per_second, point.data_wait = x.numel() / seconds, waited / seconds
        point.mfu = self.usage.mfu(point.tokens_per_second, x.shape[1])
        point.peak_memory = self.usage.peak_memory()
        return point, wrong

    def _agreed(self, event: str | None) -> str | None:
        """Return the event that any process has seen: a memory error may damage the weights of one process only."""
        if self.ranks.size == 1:
            return event
        names = list(EVENTS)
        code = 0 if event is None else len(names) - names.index(event)
        agreed = int(self.ranks.largest(torch.tensor(code)))
        return names[-agreed] if agreed else None

    def gradients(self, k: int, x: Tensor, y: Tensor) -> Tensor:
        """Store the batch's gradient in the parameters, summed over micro-batches, and return the batch's mean loss."""
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=x.device, dtype=self.numerics.dtype)
        own = self._share(pieces(len(x), self.numerics.micro_batch, self.ranks.size))
        end = self.model.document_end
        # how many targets of each row the mean loss of the batch counts, up to a common factor
        targets: list[int] = [1] * len(x) if end is None else (x != end).sum(1).tolist()
        fused = self.numerics.fused_dropout
        for n, (piece, counts) in enumerate(own):
            micro = piece.micro.stop - piece.micro.start
            stream = Stream("dropout", self.seeds.dropout).at(k, piece.number)
            rows = slice(piece.start - piece.micro.start, piece.stop - piece.micro.start)
            masks = draw_masks(
                self.config.model, micro, x.shape[1], stream=stream, device=x.device, rows=rows, fused=fused
            )
            xs, ys = x[piece.start : piece.stop], y[piece.start : piece.stop]
            if self.config.model.plugin:  # it draws its own dropout, for the rows of this piece
                stream = Stream("dropout", self.seeds.dropout).at(k, piece.number, piece.start)
            share = counts * sum(targets[piece.start : piece.stop]) / max(1, sum(targets))
            last = n == len(own) - 1
            with kernels_seeded(x.device, stream, fused=fused or bool(self.config.plugins())):
                total += self.gradient.add(xs, ys, masks, share=share, scale=self.counters.scale, last=last)
        self.gradient.sum_over_ranks()
        return self.ranks.sum(total)

    def _share(self, cut: list[Piece]) -> list[tuple[Piece, int]]:
        """Return this process's pieces, each with weight 1.

        For a sharded model all processes must compute equally often, because they gather its weights together. A
        process with fewer pieces gets more of weight 0.
        """
        own = [(piece, 1) for piece in cut[self.ranks.index :: self.ranks.size]]
        missing = -(-len(cut) // self.ranks.size) - len(own) if self.numerics.sharded else 0
        return own + [(cut[0], 0)] * missing

    def unscale(self) -> list[Tensor]:
        """Divide the gradients by the loss scale and return them; of sharded tensors this process's shards.

        An intervention of the user's own then changes them, before they are measured and clipped.
        """
        grads = self._grads()
        if self.counters.scale != 1.0:
            torch._foreach_div_(grads, self.counters.scale)
        if self.intervention is None:
            return grads
        k, named = self.counters.step + 1, self.by_name
        before = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in named.items()}
        with own_code_of(self, *UPDATE, ahead=1), self._draws("dropout", k, "gradients"):
            changed = self.intervention.gradients(k, named, before)
        for name, p in named.items():
            p.grad = changed[name]
        return self._grads()

    def _grads(self) -> list[Tensor]:
        return [local(p.grad) for p in self.parameters if p.grad is not None]

    @property
    def step(self) -> int:
        """The number of updates so far."""
        return self.counters.step

    def _draws(self, stream: str, *address: int | str) -> AbstractContextManager[None]:
        """Let the user's own code draw from a stream; without such code nothing is drawn."""
        named = self.config.plugins()
        return drawing(Stream(stream, getattr(self.seeds, stream)).at(*address).seed64()) if named else nullcontext()

    def own_state(self) -> dict[str, Tensor]:
        """Return a copy of the state of the user's own optimiser and intervention."""
        return {name: tensor for part in self.own_parts for name, tensor in part.tensors().items()}

    def restore_own(self, tensors: dict[str, Tensor]) -> None:
        """Restore the state of :meth:`own_state`."""
        for part in self.own_parts:
            part.restore(tensors)

    def batch(self, k: int) -> tuple[Tensor, Tensor]:
        """Return tokens and targets [B, T] of update ``k`` on the run's device."""
        x, y = self.batches.step(k, self.branch)
        self.batch_sum = crc32(x.numpy().data)
        return self._to_device(x), self._to_device(y)

    def micro_gradients(self, x: Tensor, y: Tensor) -> None:
        """Compute the gradient of ``x`` [B, T] as one uncompiled micro-batch, to measure its cost."""
        stream = Stream("dropout", self.seeds.dropout).at(0, 0)
        fused = self.numerics.fused_dropout
        masks = draw_masks(self.config.model, len(x), x.shape[1], stream=stream, device=x.device, fused=fused)
        with self.numerics.autocast(), kernels_seeded(x.device, stream, fused=fused):
            loss = self.model.loss(x, y, masks)
        loss.backward()

    def apply(self, norm: Tensor, rate: float) -> None:
        """Make an update with learning rate ``rate``; ``norm`` is the L2 norm of the gradient."""
        if self.config.optim.clip:
            grads = self._grads()
            factor = torch.clamp(self.config.optim.clip / (norm + 1e-6), max=1.0)
            torch._foreach_mul_(grads, factor.to(grads[0].device))
        if self.own_optimizer is not None:
            self.own_optimizer.set_rate(rate)
        else:
            for group in self.optimizer.param_groups:
                group["lr"] = rate
        with own_code_of(self, *UPDATE), self._draws("dropout", self.step, "update"):
            self.optimizer.step()
            if self.intervention is not None:
                self.intervention.weights(self.step, self.by_name)
        self.counters.adam_steps += 1

    def _log(self, k: int, loss: float, rate: float, grad_norm: float, zeros: float, scale: float) -> StepPoint:
        moments = [local(v) for v in second_moments(self.optimizer)]
        norms = [self._norm([local(p.detach()) for p in self.parameters])]
        if moments:
            total, top = sum_and_largest(moments)
            norms += [self._sum(total), self.ranks.largest(top) if self.numerics.sharded else top]
        c = self.counters
        point = StepPoint(
            step=k,
            train_loss=loss,
            lr=rate,
            grad_norm=grad_norm,
            loss_scale=scale,
            skipped_steps=c.skipped,
            nan_steps=c.not_finite,
            zeros_in_grads=zeros,
            consumed_samples=self.batches.batch.consumed(k),
            consumed_tokens=c.tokens,
        )
        self.late = point, torch.stack(norms)
        return point

    def _fetch(self, values: list[Tensor]) -> list[float]:
        """Return device values as numbers, and complete the last step's log: both wait for the device only once."""
        late = [] if self.late is None else list(self.late[1].double())
        numbers: list[float] = torch.stack([*values, *late]).tolist()
        if late:
            self._complete(numbers[len(values) :])
        return numbers[: len(values)]

    def settle(self) -> None:
        """Complete the last step's log if it is incomplete; waits for the device."""
        if self.late is not None:
            self._complete(self.late[1].tolist())

    def _complete(self, norms: list[float]) -> None:
        assert self.late is not None
        point, self.late = self.late[0], None
        point.param_norm, point.adam_v_l1, point.adam_v_max = (*norms, math.nan, math.nan)[:3]
        self.watch.after(
            param_norm=point.param_norm,
            adam_v_l1=point.adam_v_l1,
            adam_v_max=point.adam_v_max,
            adam_steps=self.counters.adam_steps if len(norms) > 1 else 0,  # an optimiser may have no such moments
        )

    def _to_device(self, x: Tensor) -> Tensor:
        if self.numerics.device.type == "cuda":
            return x.pin_memory().to(self.numerics.device, non_blocking=True)
        return x

    def _norm(self, tensors: list[Tensor]) -> Tensor:
        """Return the L2 norm of ``tensors``; if they are shards, the norm of the whole tensors."""
        norm = get_total_norm(tensors)
        return self._sum(norm.square()).sqrt() if self.numerics.sharded else norm

    def _sum(self, value: Tensor) -> Tensor:
        """Return the sum over processes of a value measured on shards; without shards return ``value``."""
        return self.ranks.sum(value) if self.numerics.sharded else value

    @torch.no_grad()
    def train_accuracy(self, k: int) -> float:
        """Return the accuracy on the batch of update ``k`` before that update, without dropout."""
        x, y = self.batches.step(k, self.branch)
        micro = self.numerics.micro_batch
        with own_code_of(self, *STEP), self._draws("eval", k, "train accuracy"):
            scores = self._scores([(x[i : i + micro], y[i : i + micro]) for i in range(0, len(x), micro)])
        return float(scores[:, 1].sum() / scores[:, 2].sum())

    @torch.no_grad()
    def evaluate(self) -> CurvePoint:
        """Return loss and accuracy on the validation sets, and the norms of the weights.

        It never changes the run: it draws no random numbers and stores nothing.
        """
        with own_code_of(self, *STEP), self._draws("eval", self.step, "own code"):
            (loss, accuracy), *further = [self._validate(*where) for where in self.validation.values()]
        names = list(self.validation)[1:]
        squares: dict[str, list[Tensor]] = {}
        for name, p in self.by_name.items():
            squares.setdefault(component(name), []).append(local(p.detach()).double().square().sum())
        totals = self._sum(torch.stack([torch.stack(s).sum() for s in squares.values()])).sqrt().tolist()
        norms: dict[str, float] = dict(zip(squares, totals, strict=True))
        outside = math.sqrt(sum(v * v for name, v in norms.items() if name not in EMBEDDINGS))
        return CurvePoint(
            step=self.counters.step,
            val_loss=loss,
            val_acc=accuracy,
            weight_norm=outside,
            weight_norm_all=math.sqrt(sum(v * v for v in norms.values())),
            block_norms=norms,
            metrics={f"{VAL_LOSS}{name}": value for name, (value, _) in zip(names, further, strict=True)}
            | {f"{VAL_ACC}{name}": value for name, (_, value) in zip(names, further, strict=True)},
        )

    def _validate(self, tokens: NDArray[Any], starts: NDArray[np.int64]) -> tuple[float, float]:
        """Return mean loss and accuracy in the windows at ``starts``."""
        micro, context = self.numerics.micro_batch, self.config.model.context
        chunks = [starts[first : first + micro] for first in range(0, len(starts), micro)]
        losses, hits, scored = self._scores([gather(tokens, chunk, context) for chunk in chunks]).unbind(1)
        n = float(scored.sum())
        return float(losses.sum()) / n, float(hits.sum()) / n

    def _scores(self, chunks: Sequence[tuple[Any, Any]]) -> Tensor:
        """Return summed cross-entropy, hits and number of targets [chunks, 3] in float64.

        The chunks are divided among the processes.
        """
        scores = torch.zeros(len(chunks), 3, dtype=torch.float64, device=self.numerics.device)
        rounds = -(-len(chunks) // self.ranks.size)
        for i in range(self.ranks.index, rounds * self.ranks.size, self.ranks.size):
            if i < len(chunks) or self.numerics.sharded:  # all processes gather a sharded model together
                x, y = (self._to_device(torch.as_tensor(a)) for a in chunks[min(i, len(chunks) - 1)])
                with self.ranks.watched(), self.numerics.autocast():
                    loss, hit, scored = self.model.score(x, y)
                if i < len(chunks):
                    scores[i, 0], scores[i, 1], scores[i, 2] = loss.double().sum(), hit.sum(), scored
        return self.ranks.sum(scores)


def logs_late(numerics: Numerics) -> bool:
    """Return whether the next step completes a step's log: on a GPU a second wait in each step would cost time."""
    return numerics.device.type == "cuda"
