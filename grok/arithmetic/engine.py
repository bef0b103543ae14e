"""The engine: trains jobs as lanes and yields their events, before that tries the user's own code. No I/O.

On a CPU each lane is computed alone, so a run's bits cannot depend on its neighbours, its
position or on refills. ``lanes`` runs take turns; more than one makes no run faster, but
shows the progress of all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from grok.arithmetic.own_training import train_own
from grok.arithmetic.program import Program, program_key
from grok.arithmetic.run import ArithmeticRun, Lane, at_own_numerics
from grok.arithmetic.task import shapes_of
from grok.arithmetic.user import ModuleLane, ModuleProgram, OwnLane, program_for
from grok.config.arithmetic import ArithmeticConfig
from grok.config.common import NumericsConfig
from grok.errors import ConfigError
from grok.records import Event, Job, StopRequested
from grok.runs import never
from grok.user import losses_of, tried


def train(
    jobs: Sequence[Job], *, lanes: int | None = None, device: str = "cpu", stop: StopRequested = never
) -> Iterator[Event]:
    """Train every job and yield its events: one ``RunResult`` for each, unless stopped.

    Args:
        jobs: runs with arithmetic configs, in the order in which they get a lane.
        lanes: number of runs in flight; default on a CPU: one, on a GPU: from the table of widths.
        device: ``"cpu"`` or ``"cuda"``.
        stop: called between steps; when it returns True, the generator yields a last
            ``Checkpoint`` for every run in flight and returns.

    Raises:
        ConfigError: another device, or a setting that the device does not support.
    """
    if jobs and isinstance(jobs[0].config, ArithmeticConfig) and jobs[0].config.task.trains_itself():
        yield from train_own(jobs, stop)
        return
    if device == "cuda":
        from grok.arithmetic.gpu import train_stacked

        yield from train_stacked(jobs, lanes=lanes, stop=stop)
        return
    if device != "cpu":
        raise ConfigError(f"device={device!r}: expected cpu or cuda")
    programs: dict[str, Program] = {}
    waiting = list(reversed(jobs))
    flying: list[Lane] = []
    while waiting or flying:
        while waiting and len(flying) < (lanes or 1):
            flying.append(seat(waiting.pop(), programs))
        for lane in list(flying):
            lane.run.go()
            for event in lane.advance(stop):
                lane.run.pause()
                yield event
                lane.run.go()
            lane.run.pause()
            if stop():
                yield from (other.checkpoint() for other in flying if not other.run.ended())
                return
            if lane.run.ended():
                flying.remove(lane)


def seat(job: Job, programs: dict[str, Program]) -> Lane:
    """Return the lane of ``job``; its program comes from ``programs``, or is made and added to it."""
    config = job.config
    assert isinstance(config, ArithmeticConfig)
    key = program_key(config)
    if key not in programs:
        programs[key] = program_for(config)
    run = ArithmeticRun(at_own_numerics(job, programs[key].tag()))
    own = ModuleLane if isinstance(programs[key], ModuleProgram) else OwnLane
    return (own if config.plugins() else Lane)(run, programs[key])


# Checks the user's own code before a sweep: constructs everything and takes one training step.


def refuse_unusable(config: ArithmeticConfig) -> None:
    """Refuse code that cannot be imported, does not keep the contracts, or fails.

    Raises:
        GrokError: the message names the setting, in one line.
    """
    with tried(config):
        if config.task.trains_itself():
            return
        config.task.refuse_empty_sets()
        config.refuse_large_batch()
        config = replace(config, numerics=NumericsConfig(compile=False))
        lane = seat(Job(run_id="planned", config=config), {})
        lane.optimizer.tensors()  # refuses a state that no checkpoint can keep
        if isinstance(lane.program, ModuleProgram):
            lane.gradients(1)
        elif config.train.loss_plugin:
            logits = torch.zeros(2, shapes_of(config.task).tokens)
            losses_of(config.train.loss_plugin, logits, torch.zeros(2, dtype=torch.int64))
