"""The engine: trains jobs as lanes and yields their events. It does no I/O.

On a CPU each lane is computed alone, so a run's bits cannot depend on its neighbours, its
position or on refills. ``lanes`` runs take turns; more than one makes no run faster, but
shows the progress of all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from grok.arithmetic.lane import Lane
from grok.arithmetic.own_lane import own_lane
from grok.arithmetic.own_program import own_program
from grok.arithmetic.program import OneLaneProgram, Program, program_key
from grok.arithmetic.run import ArithmeticRun, at_own_numerics
from grok.config.arithmetic import ArithmeticConfig
from grok.errors import ConfigError
from grok.records import Event, Job, StopRequested
from grok.runs import never


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
    if device == "cuda":
        from grok.arithmetic.stacked import train_stacked

        yield from train_stacked(jobs, lanes=lanes, stop=stop)
        return
    if device != "cpu":
        raise ConfigError(f"device={device!r}: expected cpu or cuda")
    programs: dict[str, Program] = {}
    waiting = list(reversed(jobs))
    flying: list[Lane] = []
    while waiting or flying:
        while waiting and len(flying) < (lanes or 1):
            job = waiting.pop()
            flying.append(seat(job, programs))
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
    key, own = program_key(config), bool(config.plugins())
    if key not in programs:
        programs[key] = own_program(config) if own else OneLaneProgram(config)
    run = ArithmeticRun(at_own_numerics(job, programs[key].tag()))
    return own_lane(run, programs[key]) if own else Lane(run, programs[key])
