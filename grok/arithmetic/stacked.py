"""Many lanes in batched products, for a device on which one lane is too small.

All lanes of one program are stacked along a leading axis and every product is a batched
one. The width is fixed (short groups are padded with idle lanes), a finished lane is
refilled in place, and no sum uses atomics, so a lane's bits depend on the tag and on
nothing beside it. Batch order is the same pure function as on a CPU, laid on the device
an epoch at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grok.arithmetic.backends import StackedLanes
from grok.arithmetic.flight import Flight
from grok.arithmetic.initial import Parameters, initial_parameters, parameter_shapes
from grok.arithmetic.interventions import unsupported_by_stacks
from grok.arithmetic.lanes import LaneModel
from grok.arithmetic.measure import norms, weights_hash
from grok.arithmetic.optimizer import decays, learning_rate, stacked_adamw
from grok.arithmetic.program import dtype_of, program_key
from grok.arithmetic.rows import Batch, RowPlan
from grok.arithmetic.table import Equations, split
from grok.arithmetic.vocabulary import FIRST_NUMBER
from grok.config.arithmetic import ArithmeticConfig
from grok.errors import ConfigError
from grok.records import Checkpoint, CurvePoint, Event, Job, RunResult, StopRequested

WIDTHS = {"NVIDIA H200": 256, "NVIDIA H100": 192, "NVIDIA A100": 128}
"""Lanes side by side by device model, for a model of the default size; a start, to be measured per model."""
DEFAULT_WIDTH = 64
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


@dataclass(slots=True)
class Seat:
    """A lane's place in the stack: the run that sits there and its data on the device."""

    flight: Flight
    train_set: list[Tensor]
    val_set: Equations
    initial: Parameters


def train_stacked(
    jobs: Sequence[Job], *, lanes: int | None, stop: StopRequested, device: str = "cuda"
) -> Iterator[Event]:
    """Train ``jobs`` in stacks of lanes that share one program each; events as ``engine.train``."""
    by_program: dict[str, list[Job]] = {}
    for job in jobs:
        assert isinstance(job.config, ArithmeticConfig)
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
        if missing := unsupported_by_stacks(config):
            raise ConfigError(f"{', '.join(missing)}: stacked lanes do not carry this yet, set device=cpu")
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
                if self.seats[lane] is None and self.waiting:
                    self._seat(lane, self.waiting.pop())
            if all(seat is None for seat in self.seats):
                return
            yield from self._advance()
            if stop():
                yield from (self._checkpoint(lane) for lane, seat in enumerate(self.seats) if seat is not None)
                return

    def _set_precision(self) -> None:
        if self.device.type == "cuda":
            torch.backends.cuda.matmul.fp32_precision = "tf32" if self.config.precision == "tf32" else "ieee"

    @torch.no_grad()
    def _seat(self, lane: int, job: Job) -> None:
        """Give a job the lane: its weights, its moments, its data."""
        flight = Flight(job)
        train_set, val_set = split(flight.config.task, flight.streams.split)
        initial = initial_parameters(flight.config, self.dtype)
        for name in self.names:
            resumed = None if job.resume is None else job.resume.tensors
            self.parameters[name][lane] = (initial[name] if resumed is None else resumed[f"parameters.{name}"]).to(
                self.device
            )
            for group, state in (("first_moment", self.first_moment), ("second_moment", self.second_moment)):
                state[name][lane] = 0 if resumed is None else resumed[f"{group}.{name}"].to(self.device)
        columns = [torch.from_numpy(x).to(self.device) for x in (train_set.a, train_set.b, train_set.answer)]
        self.seats[lane] = Seat(flight, columns, val_set, initial if "init" in flight.config.save else {})

    def _boundary(self, seat: Seat) -> int:
        """Return how many steps a lane may go before something is due."""
        flight, steps = seat.flight, 1
        while steps < STOP_CADENCE:
            step = flight.step + steps
            if step in flight._due or (
                flight.config.train.stop_when_generalised and step % flight.config.train.stop_every == 0
            ):
                break
            every = flight.config.checkpoint.every
            if step >= flight.config.train.steps or (every > 0 and step % every == 0):
                break
            steps += 1
        return steps

    def _batches(self, steps: int) -> tuple[list[Tensor], Tensor]:
        """Return the next ``steps`` mini-batches of all lanes: three [S, L, B] columns and shares [S, L, B]."""
        size = self.config.train.batch_size
        columns = [torch.zeros(steps, self.width, size, dtype=torch.int64, device=self.device) for _ in range(3)]
        shares = torch.zeros(steps, self.width, size, dtype=self.dtype)
        for lane, seat in enumerate(self.seats):
            if seat is None:
                continue
            rows = []
            for s in range(steps):
                index, true = seat.flight.order.padded_batch(seat.flight.step + 1 + s)
                rows.append(torch.from_numpy(index))
                shares[s, lane, :true] = 1 / true
            index_on_device = torch.stack(rows).to(self.device)
            for column, values in zip(columns, seat.train_set, strict=True):
                column[:, lane] = values[index_on_device]
        return [c + FIRST_NUMBER for c in columns], shares.to(self.device)

    def _per_lane(self, value_of: object) -> Tensor:
        assert callable(value_of)
        values = [0.0 if seat is None else float(value_of(seat.flight)) for seat in self.seats]
        return torch.tensor(values, dtype=torch.float64, device=self.device)

    def _advance(self) -> Iterator[Event]:
        """Take all lanes forward to the nearest boundary of any, then look."""
        steps = min(self._boundary(seat) for seat in self.seats if seat is not None)
        columns, shares = self._batches(steps)
        active = self._per_lane(lambda _: 1.0)
        betas = torch.stack([self._per_lane(lambda f, i=i: f.config.optim.betas[i]) for i in (0, 1)])
        eps = self._per_lane(lambda f: f.config.optim.eps)
        decay = {
            n: self._per_lane(
                lambda f, n=n: f.config.optim.weight_decay if decays(n, self.parameters[n][0], f.config.optim) else 0.0
            )
            for n in self.names
        }
        at = self._per_lane(lambda f: f.step)
        rates = torch.stack(
            [self._per_lane(lambda f, s=s: learning_rate(f.config.optim, f.step + 1 + s)) for s in range(steps)]
        )
        tensors = [self.parameters[n] for n in self.names]
        finite = torch.ones(self.width, dtype=torch.bool, device=self.device)
        loss = accuracy = torch.zeros(self.width)
        for s in range(steps):
            batch = Batch(columns[0][s], columns[1][s], columns[2][s], shares[s])
            loss, accuracy, gradients = self._gradients(tensors, batch)
            finite &= loss.isfinite()
            with torch.no_grad():
                stacked_adamw(
                    tensors,
                    gradients,
                    list(self.first_moment.values()),
                    list(self.second_moment.values()),
                    step=at + 1 + s,
                    lr=rates[s],
                    decay=[decay[n] for n in self.names],
                    betas=betas,
                    eps=eps,
                    active=active,
                )
        losses, accuracies, is_finite = loss.tolist(), accuracy.tolist(), finite.tolist()
        for lane, seat in enumerate(self.seats):
            if seat is not None:
                seat.flight.step += steps
                if not is_finite[lane] or not math.isfinite(losses[lane]):
                    seat.flight.diverge()
        yield from self._look(losses, accuracies)

    def _gradients(self, tensors: list[Tensor], batch: Batch) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.config.precision == "bf16"):
            logits = self.model.logits(dict(zip(self.names, tensors, strict=True)), batch)
            loss = (self.model.ops.losses(logits, batch.answer) * batch.share).sum(-1)  # [L]
        accuracy = ((logits.detach().argmax(-1) == batch.answer).to(batch.share.dtype) * batch.share).sum(-1)
        # an idle or diverged lane's infinities stay in its own lane: no product crosses lanes
        return loss.detach(), accuracy, torch.autograd.grad(loss.sum(), tensors)

    def _look(self, losses: list[float], accuracies: list[float]) -> Iterator[Event]:
        """Evaluate, decide, checkpoint and retire whatever is due."""
        looking = {
            lane: seat
            for lane, seat in enumerate(self.seats)
            if seat is not None and (seat.flight.evaluation_due() or seat.flight.decision_due() or seat.flight.diverged)
        }
        found = self._evaluate(looking) if looking else {}
        for lane, seat in enumerate(self.seats):
            if seat is None:
                continue
            flight = seat.flight
            if lane in found:
                if flight.decision_due() and not flight.diverged:
                    flight.decide(found[lane][1])
                if flight.evaluation_due() or flight.diverged or flight.ended():
                    yield flight.observe(self._point(lane, flight, losses[lane], accuracies[lane], found[lane]))
            if flight.ended():
                yield self._result(lane, seat)
                self.seats[lane] = None
            elif flight.checkpoint_due():
                yield self._checkpoint(lane)

    @torch.no_grad()
    def _evaluate(self, looking: dict[int, Seat]) -> dict[int, tuple[float, float]]:
        """Return (loss, accuracy) on each looking lane's own validation set; all lanes run, to keep one width."""
        n = max(len(seat.val_set) for seat in looking.values())
        columns = torch.full((3, self.width, n), FIRST_NUMBER, dtype=torch.int64)
        columns[1] += self.plan.right.start - FIRST_NUMBER
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
            logits = self.model.logits(self.parameters, batch)
            counted = (torch.arange(start, start + a.shape[1])[None] < lengths[:, None]).to(self.device)
            losses += (self.model.ops.losses(logits, batch.answer).double() * counted).sum(-1)
            hits += ((logits.argmax(-1) == batch.answer) & counted).double().sum(-1)
        mean, share = losses.tolist(), hits.tolist()
        return {x: (mean[x] / len(seat.val_set), share[x] / len(seat.val_set)) for x, seat in looking.items()}

    def _lane_parameters(self, lane: int) -> Parameters:
        return {n: p[lane].detach().cpu() for n, p in self.parameters.items()}

    def _point(
        self, lane: int, flight: Flight, train_loss: float, train_acc: float, val: tuple[float, float]
    ) -> CurvePoint:
        weight_norm, weight_norm_all, block_norms = norms(self._lane_parameters(lane))
        return CurvePoint(
            step=flight.step,
            train_loss=train_loss,
            train_acc=train_acc,
            val_loss=val[0],
            val_acc=val[1],
            weight_norm=weight_norm,
            weight_norm_all=weight_norm_all,
            lr=learning_rate(flight.config.optim, flight.step),
            block_norms=block_norms,
        )

    def _checkpoint(self, lane: int) -> Checkpoint:
        seat = self.seats[lane]
        assert seat is not None
        groups = (
            ("parameters", self.parameters),
            ("first_moment", self.first_moment),
            ("second_moment", self.second_moment),
        )
        tensors = {f"{g}.{n}": t[lane].detach().cpu().clone() for g, named in groups for n, t in named.items()}
        flight = seat.flight
        return Checkpoint(run_id=flight.job.run_id, step=flight.step, tensors=tensors, state=flight.state())

    def _result(self, lane: int, seat: Seat) -> RunResult:
        final = {n: p.clone() for n, p in self._lane_parameters(lane).items()}
        result = seat.flight.result(weights_hash=weights_hash(final), device=self.device.type, numerics=self.tag())
        if "init" in seat.flight.config.save:
            result.tensors["init"] = seat.initial
        if "final" in seat.flight.config.save:
            result.tensors["final"] = final
        return result
