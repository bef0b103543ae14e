"""Many lanes in batched products, for a device on which one lane is too small.

All lanes of one program are stacked along a leading axis and every product is a batched
one. The width is fixed (short groups are padded with idle lanes), a finished lane is
refilled in place, and no sum uses atomics, so a lane's bits depend on the tag and on
nothing beside it. Batch order is the same pure function as on a CPU: the epoch's random
words are drawn on the host and sorted on the device.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from grok.arithmetic.flight import Flight
from grok.arithmetic.initial import initial_parameters, parameter_shapes
from grok.arithmetic.lanes import LaneModel
from grok.arithmetic.measure import norms_of, weights_hash
from grok.arithmetic.optimizer import decays, learning_rate, stacked_adamw
from grok.arithmetic.program import dtype_of, program_key
from grok.arithmetic.rows import Batch, RowPlan
from grok.arithmetic.stacked.backend import StackedLanes
from grok.arithmetic.table import split
from grok.arithmetic.vocabulary import FIRST_NUMBER
from grok.config.arithmetic import ArithmeticConfig
from grok.errors import ConfigError
from grok.records import Checkpoint, CurvePoint, Event, Job, RunResult, StopRequested

WIDTHS = {"NVIDIA H200": 256, "NVIDIA H100": 192, "NVIDIA A100": 128}
"""Lanes side by side by device model, for a model of the default size; a start, to be measured per model."""
DEFAULT_WIDTH = 64
_TOP_BIT = -(2**63)
STOP_CADENCE = 50
"""Steps between two looks at losses and at the stop request: the device is not waited for in between."""


def lane_width(config: ArithmeticConfig, device: torch.device) -> int:
    """Return the fixed number of lanes for a config on a device: by table, wider for smaller models."""
    if device.type != "cuda":
        return 8
    name = torch.cuda.get_device_name(device)
    base = next((width for model, width in WIDTHS.items() if name.startswith(model)), DEFAULT_WIDTH)
    d, ff = config.model.d_model, config.model.d_ff or 4 * config.model.d_model
    size = config.train.batch_size * config.model.layers * (4 * d + 2 * ff)
    default = 512 * 2 * (4 * 128 + 2 * 512)
    return max(8, min(1024, 8 * round(base * default / max(size, 1) / 8)))


class Seat:
    """A lane's place in the stack: the run that sits there and what of it stays on the host."""

    def __init__(self, job: Job, dtype: torch.dtype) -> None:
        self.flight = Flight(job)
        self.train_set, self.val_set = split(self.flight.config.task, self.flight.streams.split)
        self.initial = initial_parameters(self.flight.config, dtype)
        self.epoch = -1
        """The epoch whose order lies on the device."""


def train_stacked(
    jobs: Sequence[Job], *, lanes: int | None, stop: StopRequested, device: str = "cuda"
) -> Iterator[Event]:
    """Train ``jobs`` in stacks of lanes that share one program each; events as ``engine.train``."""
    by_program: dict[str, list[Job]] = {}
    for job in jobs:
        assert isinstance(job.config, ArithmeticConfig)
        if missing := job.config.only_on_cpu():
            raise ConfigError(f"{', '.join(missing)}: stacked lanes do not carry this yet, set device=cpu")
        by_program.setdefault(program_key(job.config), []).append(job)
    for group in by_program.values():
        yield from Stack(group, lanes=lanes, device=torch.device(device)).train(stop)
        if stop():
            return


class Stack:
    """One program's lanes and the jobs that wait for one."""

    def __init__(self, jobs: Sequence[Job], *, lanes: int | None, device: torch.device) -> None:
        config = jobs[0].config
        assert isinstance(config, ArithmeticConfig)
        self.config, self.device = config, device
        self.width = lanes or lane_width(config, device)
        self.dtype = dtype_of(config)
        self.waiting = list(reversed(jobs))
        self.seats: list[Seat | None] = [None] * self.width
        self.plan = RowPlan.of(config.task)
        self.model = LaneModel(config.model, self.plan, StackedLanes())
        shapes = parameter_shapes(config)
        self.names = list(shapes)
        zeros = {n: torch.zeros(self.width, *s, dtype=self.dtype, device=device) for n, s in shapes.items()}
        self.parameters = {n: z.clone().requires_grad_() for n, z in zeros.items()}
        examples = config.task.train_examples()
        self.columns = torch.full((3, self.width, examples), FIRST_NUMBER, device=device)  # a, b, answer
        self.columns[1] = self.plan.right.start  # lanes at rest compute equations that exist
        self.order = torch.arange(examples, device=device).repeat(self.width, 1)
        self.first_moment = {n: z.clone() for n, z in zeros.items()}
        self.second_moment = {n: z.clone() for n, z in zeros.items()}

    def tag(self) -> str:
        """Return the numerics tag; the width is in it because a batched product may depend on it."""
        cuda = self.device.type == "cuda"
        parts = {
            "device": self.device.type,
            "model": torch.cuda.get_device_name(self.device) if cuda else "stacked",
            "rows": "shared",
            "products": "batched",
            "compiled": "no",
            "precision": self.config.precision,
            "width": str(self.width),
            "torch": torch.__version__,
        }
        return ";".join(f"{key}={value}" for key, value in parts.items())

    def train(self, stop: StopRequested) -> Iterator[Event]:
        self._set_precision()
        while True:
            for lane in range(self.width):
                while self.seats[lane] is None and self.waiting:
                    yield from self._seat(lane, self.waiting.pop())
            if all(seat is None for seat in self.seats):
                return
            yield from self._advance()
            if stop():
                yield from (self._checkpoint(lane, seat) for lane, seat in self._seated())
                return

    def _seated(self) -> list[tuple[int, Seat]]:
        return [(lane, seat) for lane, seat in enumerate(self.seats) if seat is not None]

    def _set_precision(self) -> None:
        if self.device.type == "cuda":
            torch.backends.cuda.matmul.fp32_precision = "tf32" if self.config.precision == "tf32" else "ieee"

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.config.precision == "bf16")

    @torch.no_grad()
    def _seat(self, lane: int, job: Job) -> Iterator[Event]:
        """Give a job the lane: its weights, its moments, its data."""
        seat = Seat(job, self.dtype)
        seat.flight.refuse_other_numerics(self.tag())
        columns = (seat.train_set.a, seat.train_set.b, seat.train_set.answer)
        self.columns[:, lane] = torch.stack([torch.from_numpy(x) for x in columns]).to(self.device) + FIRST_NUMBER
        resumed = None if job.resume is None else job.resume.tensors
        for name in self.names:
            start = seat.initial[name] if resumed is None else resumed[f"parameters.{name}"]
            self.parameters[name][lane] = start.to(self.device)
            for group, state in (("first_moment", self.first_moment), ("second_moment", self.second_moment)):
                state[name][lane] = 0 if resumed is None else resumed[f"{group}.{name}"].to(self.device)
        if seat.flight.ended():  # resumed at its very end: killed before its row was written
            yield self._result(lane, seat)
        else:
            self.seats[lane] = seat

    @staticmethod
    def _boundary(flight: Flight) -> int:
        """Return how many steps a run may go before something is due."""
        steps = 1
        while steps < STOP_CADENCE and not flight.due_at(flight.step + steps):
            steps += 1
        return steps

    def _batches(self, further: int) -> Batch:
        """Return the mini-batch of all lanes, ``further`` steps beyond where each is: columns and shares [L, B]."""
        starts, true = (torch.zeros(self.width, 1, dtype=torch.int64) for _ in range(2))
        for lane, seat in self._seated():
            order = seat.flight.order
            epoch, i = divmod(seat.flight.step + further - 1, order.batches_per_epoch)
            if epoch != seat.epoch:
                # words as signed integers in the same order: their stable sort is the stream's own permutation
                words = torch.from_numpy(order.stream(epoch).words(order.n).view(np.int64)).to(self.device)
                self.order[lane] = torch.argsort(words ^ _TOP_BIT, stable=True)
                seat.epoch = epoch
            starts[lane] = i * order.batch_size
            true[lane] = min(order.batch_size, order.n - i * order.batch_size)
        starts, true = starts.to(self.device), true.to(self.device)
        place = torch.arange(self.config.train.batch_size, device=self.device)[None]  # [1, B]
        counted = place < true
        index = self.order.gather(1, torch.where(counted, starts + place, starts))  # [L, B]
        a, b, answer = self.columns.gather(2, index.expand(3, -1, -1))
        return Batch(a, b, answer, counted.to(self.dtype) / true.clamp(min=1).to(self.dtype))

    def _per_lane(self, value_of: Callable[[Flight], float]) -> Tensor:
        values = [0.0 if seat is None else float(value_of(seat.flight)) for seat in self.seats]
        return torch.tensor(values, dtype=torch.float64, device=self.device)

    def _advance(self) -> Iterator[Event]:
        """Take all lanes forward to the nearest boundary of any, then look.

        A lane whose loss is not finite rests from that step on, so where it diverged does
        not depend on how far its neighbours went.
        """
        start = time.monotonic()
        steps = min(self._boundary(seat.flight) for _, seat in self._seated())
        config = self._per_lane
        betas = torch.stack([config(lambda f, i=i: f.config.optim.betas[i]) for i in (0, 1)])  # type: ignore[misc]
        eps = config(lambda f: f.config.optim.eps)
        at = config(lambda f: f.step)
        decay = [config(self._decay_of(n)) for n in self.names]
        tensors = [self.parameters[n] for n in self.names]
        alive = torch.tensor([seat is not None for seat in self.seats], device=self.device)
        loss, accuracy = (torch.zeros(self.width, dtype=self.dtype, device=self.device) for _ in range(2))
        taken = torch.zeros(self.width, dtype=torch.int64, device=self.device)
        for s in range(1, steps + 1):
            lr = config(lambda f, s=s: learning_rate(f.config.optim, f.step + s))  # type: ignore[misc]
            now, hits, gradients = self._gradients(tensors, self._batches(s))
            with torch.no_grad():
                loss, accuracy = torch.where(alive, now, loss), torch.where(alive, hits, accuracy)
                stacked_adamw(
                    tensors,
                    gradients,
                    list(self.first_moment.values()),
                    list(self.second_moment.values()),
                    step=at + s,
                    lr=lr,
                    decay=decay,
                    betas=betas,
                    eps=eps,
                    active=alive,
                )
                taken += alive
                alive = alive & now.isfinite()
        for (lane, seat), went in zip(self._seated(), taken[[x for x, _ in self._seated()]].tolist(), strict=True):
            seat.flight.step += went
            if not math.isfinite(loss[lane]):
                seat.flight.diverge()
            seat.flight.spend((time.monotonic() - start) / len(self._seated()))
        yield from self._look(loss.tolist(), accuracy.tolist())

    def _decay_of(self, name: str) -> Callable[[Flight], float]:
        one_lane = self.parameters[name][0]
        return lambda f: f.config.optim.weight_decay if decays(name, one_lane, f.config.optim) else 0.0

    def _gradients(self, tensors: list[Tensor], batch: Batch) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        with self._autocast():
            logits = self.model.logits(dict(zip(self.names, tensors, strict=True)), batch)
            loss = (self.model.ops.losses(logits, batch.answer) * batch.share).sum(-1)  # [L]
        accuracy = ((logits.detach().argmax(-1) == batch.answer).to(batch.share.dtype) * batch.share).sum(-1)
        # a resting or diverged lane's infinities stay in its own lane: no product crosses lanes
        return loss.detach(), accuracy, torch.autograd.grad(loss.sum(), tensors)

    def _look(self, losses: list[float], accuracies: list[float]) -> Iterator[Event]:
        """Evaluate, decide, checkpoint and retire whatever is due."""
        looking = {
            lane: seat
            for lane, seat in self._seated()
            if seat.flight.evaluation_due() or seat.flight.decision_due() or seat.flight.diverged
        }
        found = self._evaluate(looking) if looking else {}
        squares = self._squared_norms() if looking else {}
        for lane, seat in self._seated():
            flight = seat.flight
            if lane in found:
                val_loss, val_acc = found[lane]
                if not math.isfinite(val_loss):
                    flight.diverge()
                if flight.decision_due() and not flight.diverged:
                    flight.decide(val_acc)
                if flight.evaluation_due() or flight.ended():
                    weight_norm, weight_norm_all, block_norms = norms_of({n: x[lane] for n, x in squares.items()})
                    point = CurvePoint(
                        step=flight.step,
                        train_loss=losses[lane],
                        train_acc=accuracies[lane],
                        val_loss=val_loss,
                        val_acc=val_acc,
                        weight_norm=weight_norm,
                        weight_norm_all=weight_norm_all,
                        lr=learning_rate(flight.config.optim, flight.step),
                        block_norms=block_norms,
                    )
                    yield flight.observe(point)
            if flight.ended():
                if flight.config.checkpoint.keep and flight.stop_reason == "steps":
                    yield self._checkpoint(lane, seat)  # what a longer run goes on from
                yield self._result(lane, seat)
                self.seats[lane] = None
            elif flight.checkpoint_due():
                yield self._checkpoint(lane, seat)

    @torch.no_grad()
    def _evaluate(self, looking: dict[int, Seat]) -> dict[int, tuple[float, float]]:
        """Return (loss, accuracy) on each looking lane's own validation set; all lanes run, to keep one width."""
        n = max(len(seat.val_set) for seat in looking.values())
        columns = torch.full((3, self.width, n), FIRST_NUMBER, dtype=torch.int64)
        columns[1] = self.plan.right.start
        for lane, seat in looking.items():
            for i, values in enumerate((seat.val_set.a, seat.val_set.b, seat.val_set.answer)):
                columns[i, lane, : len(values)] = torch.from_numpy(values) + FIRST_NUMBER
        columns = columns.to(self.device)
        losses = torch.zeros(self.width, dtype=torch.float64, device=self.device)
        hits = torch.zeros(self.width, dtype=torch.float64, device=self.device)
        size = self.config.train.batch_size
        lengths = torch.tensor([len(looking[x].val_set) if x in looking else 0 for x in range(self.width)])
        for start in range(0, n, size):
            a, b, answer = columns[:, :, start : start + size]
            batch = Batch(a.contiguous(), b.contiguous(), answer.contiguous(), losses)
            with self._autocast():
                logits = self.model.logits(self.parameters, batch)
                each = self.model.ops.losses(logits, batch.answer).double()
            counted = (torch.arange(start, start + a.shape[1])[None] < lengths[:, None]).to(self.device)
            losses += torch.where(counted, each, 0.0).sum(-1)
            hits += ((logits.argmax(-1) == batch.answer) & counted).double().sum(-1)
        mean, share = losses.tolist(), hits.tolist()
        return {x: (mean[x] / len(seat.val_set), share[x] / len(seat.val_set)) for x, seat in looking.items()}

    @torch.no_grad()
    def _squared_norms(self) -> dict[str, list[float]]:
        """Return each parameter's sum of squares per lane, brought to the host at once."""
        squares = [p.double().square().flatten(1).sum(1) for p in self.parameters.values()]
        return dict(zip(self.names, torch.stack(squares).tolist(), strict=True))

    def _checkpoint(self, lane: int, seat: Seat) -> Checkpoint:
        groups = (
            ("parameters", self.parameters),
            ("first_moment", self.first_moment),
            ("second_moment", self.second_moment),
        )
        tensors = {f"{g}.{n}": t[lane].detach().cpu().clone() for g, named in groups for n, t in named.items()}
        flight = seat.flight
        return Checkpoint(run_id=flight.job.run_id, step=flight.step, tensors=tensors, state=flight.state(self.tag()))

    def _result(self, lane: int, seat: Seat) -> RunResult:
        final = {n: p[lane].detach().cpu().clone() for n, p in self.parameters.items()}
        result = seat.flight.result(weights_hash=weights_hash(final), device=self.device.type, numerics=self.tag())
        if "init" in seat.flight.config.save:
            result.tensors["init"] = seat.initial
        if "final" in seat.flight.config.save:
            result.tensors["final"] = final
        return result
