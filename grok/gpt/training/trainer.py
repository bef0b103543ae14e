"""One run in flight: its model, optimiser and counters; one update, one evaluation, one state."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_

from grok.config.gpt import GptConfig
from grok.gpt.dropout import draw_masks
from grok.gpt.head import score
from grok.gpt.initial import build_model
from grok.gpt.model import GPT
from grok.gpt.training.batches import Batches, validation_starts
from grok.gpt.training.gradient import Gradient
from grok.gpt.training.numerics import Numerics
from grok.gpt.training.optimizer import build_optimizer, learning_rate, second_moments, total_norm, zero_share
from grok.gpt.training.stability import Branch, Watch
from grok.gpt.training.team import Team
from grok.records import CurvePoint, StepPoint
from grok.runs import EMBEDDINGS, component
from grok.streams import Stream
from grok.text.corpus import Corpus, check_vocabulary
from grok.text.windows import gather

SCALE_START, SCALE_GROWTH_STEPS, SCALE_MAX = 2.0**16, 2000, 2.0**24
"""Loss scaling in fp16 (Micikevicius et al. 2018): halved on overflow, doubled after so many good steps."""


@dataclass(slots=True)
class Counters:
    """What a run has counted so far."""

    step: int = 0
    tokens: int = 0
    skipped: int = 0
    not_finite: int = 0
    adam_steps: int = 0
    scale: float = 1.0
    scale_good: int = 0


class Trainer:
    """The model of one run, and what one update and one evaluation do to it."""

    def __init__(self, config: GptConfig, corpus: Corpus, numerics: Numerics, team: Team | None = None) -> None:
        self.config, self.corpus, self.numerics, self.team = config, corpus, numerics, team
        self.seeds = config.stream_seeds()
        vocab_size = model_vocabulary(config, corpus)
        self.model: GPT = build_model(config, vocab_size=vocab_size, device=numerics.device, dtype=numerics.dtype)
        self.model.use_products(numerics.products)
        self.optimizer = build_optimizer(self.model, config.optim)
        self.gradient = Gradient(self.model, numerics)
        self.batches = Batches(config, corpus)
        self.validation = validation_starts(len(corpus.tokens("val")), config.model.context, config.eval.windows)
        self.watch, self.branch = Watch(config.stability), Branch()
        self.counters = Counters(scale=SCALE_START if config.precision == "fp16" else 1.0)
        self.parameters = list(self.model.parameters())

    def update(self) -> tuple[StepPoint, str | None]:
        """Make the next update; return its log and what was wrong, if anything.

        When something is wrong (``not_finite``, ``spike``, ``rising``) the update is not made, except a
        spike under ``stability.policy=log``; a step whose fp16 gradients overflowed is skipped.
        """
        began = time.perf_counter()
        k = self.counters.step + 1
        x, y = self.batch(k)
        waited = time.perf_counter() - began

        loss = self.gradients(k, x, y)
        scale = self.counters.scale
        grads = self.unscale()
        norm = total_norm(grads)
        zeros = zero_share(grads)
        train_loss, grad_norm, zeros_in_grads = torch.stack([loss.double(), norm.double(), zeros.double()]).tolist()

        overflow = self.config.precision == "fp16" and math.isfinite(train_loss) and not math.isfinite(grad_norm)
        event = "skipped" if overflow else self.watch.see(train_loss, grad_norm)
        rate = learning_rate(self.config, k) * self.branch.lr_factor
        self.counters.step = k
        self.counters.tokens += x.numel()
        applied = event is None or (event == "spike" and self.config.stability.policy == "log")
        if applied:
            self.apply(norm, rate)
        else:
            self.counters.skipped += 1
            self.counters.not_finite += event in ("not_finite", "skipped")
        if self.config.precision == "fp16":
            self._rescale(overflow)
        point = self._log(k, train_loss, rate, grad_norm, zeros_in_grads, scale)
        point.event = event
        seconds = time.perf_counter() - began
        point.tokens_per_second, point.data_wait = x.numel() / seconds, waited / seconds
        return point, None if applied or overflow else event

    def gradients(self, k: int, x: Tensor, y: Tensor) -> Tensor:
        """Leave the batch's gradient in the parameters and return its mean loss; micro-batches add up to the whole."""
        rank, size = (self.team.rank, self.team.size) if self.team else (0, 1)
        if self.team:
            self.team.say("gradients", k, asdict(self.branch), self.counters.scale)
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=x.device, dtype=self.numerics.dtype)
        micro = self.numerics.micro_batch
        for i, (xs, ys) in enumerate(zip(x.split(micro), y.split(micro), strict=True)):
            if i % size != rank:
                continue
            stream = Stream("dropout", self.seeds.dropout).at(k, i)
            masks = draw_masks(self.config.model, *xs.shape, stream=stream, device=x.device)
            total += self.gradient.add(xs, ys, masks, share=len(xs) / len(x), scale=self.counters.scale)
        if self.team:
            for p in self.parameters:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            self.team.add_up([total, *(p.grad for p in self.parameters if p.grad is not None)])
        return total

    def unscale(self) -> list[Tensor]:
        """Take the loss scale out of the gradients and return them."""
        grads = [p.grad for p in self.parameters if p.grad is not None]
        if self.counters.scale != 1.0:
            torch._foreach_div_(grads, self.counters.scale)
        return grads

    def batch(self, k: int) -> tuple[Tensor, Tensor]:
        """Return tokens and targets [B, T] of update ``k`` on the run's device."""
        x, y = self.batches.step(k, self.branch)
        return self._to_device(x), self._to_device(y)

    def micro_gradients(self, x: Tensor, y: Tensor) -> None:
        """Compute the gradient of ``x`` [B, T] at once, uncompiled and without dropout: what a micro-batch costs."""
        with self.numerics.autocast():
            loss = self.model.loss(x, y)
        loss.backward()

    def apply(self, norm: Tensor, rate: float) -> None:
        """Make an update at ``rate`` with the gradient in the parameters, whose L2 norm is ``norm``."""
        if self.team:
            self.team.say("apply", norm.item(), rate)
        if self.config.optim.clip:
            clip_grads_with_norm_(self.parameters, self.config.optim.clip, norm)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.counters.adam_steps += 1

    def _rescale(self, overflow: bool) -> None:
        c = self.counters
        if overflow:
            c.scale, c.scale_good = c.scale / 2, 0
        else:
            c.scale_good += 1
            if c.scale_good == SCALE_GROWTH_STEPS:
                c.scale, c.scale_good = min(c.scale * 2, SCALE_MAX), 0

    def _log(self, k: int, loss: float, rate: float, grad_norm: float, zeros: float, scale: float) -> StepPoint:
        moments = second_moments(self.optimizer)
        norms = [total_norm([p.detach() for p in self.parameters])]
        if moments:
            # second moments are never negative, so their L1 norm is their sum
            norms += [torch.stack([v.sum() for v in moments]).sum(), torch.stack([v.max() for v in moments]).max()]
        values = torch.stack(norms).tolist()
        c = self.counters
        return StepPoint(
            step=k,
            train_loss=loss,
            lr=rate,
            grad_norm=grad_norm,
            param_norm=values[0],
            adam_v_l1=values[1] if moments else math.nan,
            adam_v_max=values[2] if moments else math.nan,
            loss_scale=scale,
            skipped_steps=c.skipped,
            nan_steps=c.not_finite,
            zeros_in_grads=zeros,
            consumed_samples=self.batches.batch.consumed(k),
            consumed_tokens=c.tokens,
        )

    def _to_device(self, x: Tensor) -> Tensor:
        if self.numerics.device.type == "cuda":
            return x.pin_memory().to(self.numerics.device, non_blocking=True)
        return x

    @torch.no_grad()
    def train_accuracy(self, k: int) -> float:
        """Return the accuracy on the batch of update ``k`` of the weights before it, without its dropout."""
        x, y = self.batches.step(k, self.branch)
        hits = [
            self._score(xs, ys)[1]
            for xs, ys in zip(x.split(self.numerics.micro_batch), y.split(self.numerics.micro_batch), strict=True)
        ]
        return float(torch.cat(hits).double().mean())

    @torch.no_grad()
    def evaluate(self) -> CurvePoint:
        """Return the validation loss and accuracy and the weights' norms after the updates so far.

        Never changes the run: nothing is drawn, nothing is stored.
        """
        tokens = self.corpus.tokens("val")
        losses, hits = [], []
        for chunk in range(0, len(self.validation), self.numerics.micro_batch):
            starts = self.validation[chunk : chunk + self.numerics.micro_batch]
            x, y = (torch.from_numpy(a) for a in gather(tokens, starts, self.config.model.context))
            loss, hit = self._score(x, y)
            losses.append(loss.double().sum())
            hits.append(hit.sum())
        n = len(self.validation) * self.config.model.context
        norms = component_norms(self.model)
        outside = math.sqrt(sum(v * v for name, v in norms.items() if name not in EMBEDDINGS))
        return CurvePoint(
            step=self.counters.step,
            val_loss=float(torch.stack(losses).sum()) / n,
            val_acc=float(torch.stack(hits).sum()) / n,
            weight_norm=outside,
            weight_norm_all=math.sqrt(sum(v * v for v in norms.values())),
            block_norms=norms,
        )

    def _score(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x, y = self._to_device(x), self._to_device(y)
        with self.numerics.autocast():
            features = self.model.features(x).flatten(0, 1)
            head = self.model.head
            return score(features, head.weight, y.flatten(), self.model.vocab_size, head.path)


def model_vocabulary(config: GptConfig, corpus: Corpus) -> int:
    """Return the number of tokens the model knows: the setting, or the corpus's.

    Raises:
        DataError: the setting is smaller than the corpus's vocabulary.
    """
    if config.model.vocab_size is None:
        return corpus.vocab_size
    check_vocabulary(corpus, config.model.vocab_size)
    return config.model.vocab_size


def component_norms(model: GPT) -> dict[str, float]:
    """Return the L2 norm of each component; a tied head has none of its own."""
    squares: dict[str, list[Tensor]] = {}
    for name, p in model.named_parameters():
        squares.setdefault(component(name), []).append(p.detach().double().square().sum())
    totals = torch.stack([torch.stack(s).sum() for s in squares.values()]).sqrt().tolist()
    return dict(zip(squares, totals, strict=True))
