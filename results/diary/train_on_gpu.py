"""Trains on a GPU what train.sh trains: ``python results/diary/train_on_gpu.py STAGE --store STORE [SETTING ...]``

A GPU trains hundreds of runs in the time of one, and most commands of train.sh have few. So a stage here trains the
runs of many commands together; each keeps its own design. Give train.sh afterwards: it finds these runs and trains
what is missing.

Stages, in order: ``census`` (random seeds), ``families`` (branching of each stretch of 50 seeds), ``answers`` (super
seeds again, layers, order seeds), ``float64`` (super seeds), ``decay`` and ``no-decay`` (long runs). ``--seeds
FIRST:END`` takes a part of the first two. A narrow stack is faster for the last two: ``lanes=24`` and ``lanes=8``.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator

from chosen import recipients, supers

from grok.commands.command import GO_ON, Parser, command
from grok.commands.compose import arithmetic, compose
from grok.commands.words import store_as_setting
from grok.config import RunConfig
from grok.errors import ConfigError
from grok.execute import Designed, execute
from grok.sweeps import branch, layers, repeat

HALVES = "kept=token_embedding,blocks.1,head;rest=position_embedding,blocks.0"
PARTS = "embedding=token_embedding;positions=position_embedding;first block=blocks.0;second block=blocks.1;head=head"
STRETCH = 50
"""Seeds among which two parents are chosen."""
SINGLES, PAIRS = "split,init,order", "split+init,split+order,init+order"


class Diary:
    """The plans of train.sh for one store, with the settings ``how``."""

    def __init__(self, store: str, how: list[str], seeds: range) -> None:
        self.store, self.seeds = ["--store", store], seeds
        self.how = ["eval.every=250", *how]

    def sweep(self, *settings: str, **values: range | list[float]) -> Designed[RunConfig]:
        base = compose([*self.how, f"store.path={self.store[1]}", *settings])
        points = itertools.product(*values.values())
        return Designed([arithmetic(base, **dict(zip(values, point, strict=True))) for point in points], "given")

    def census(self) -> Iterator[Designed[RunConfig]]:
        yield self.sweep(seed=self.seeds)

    def families(self) -> Iterator[Designed[RunConfig]]:
        for redraw, times in ((SINGLES, 4), (PAIRS, 2)):
            for first in self.seeds[::STRETCH]:
                parents = ["--seeds", f"{first}:{first + STRETCH}", "--best", "1", "--random", "1", "--at", "1500"]
                yield branch.planned([*self.store, *parents, "--redraw", redraw, "--times", str(times), *self.how])

    def again(self, controls: int, kinds: str, times: int = 4) -> Iterator[Designed[RunConfig]]:
        if found := ",".join(supers(self.store[1])):
            chosen = ["--seeds", found, "--controls", str(controls), "--kinds", kinds, "--times", str(times)]
            yield repeat.planned([*self.store, *chosen, *self.how])

    def answers(self) -> Iterator[Designed[RunConfig]]:
        yield from self.again(2, "ulp")
        if found := ",".join(supers(self.store[1])):
            yield branch.planned([*self.store, "--parents", found, "--redraw", SINGLES, "--times", "4", *self.how])
        yield from self.again(2, "optim.weight_decay=0.0", 1)
        crossed = {"seeds__split": range(3), "seeds__init": range(4), "seeds__order": range(4)}
        yield self.sweep("perturb.ulps=1", **crossed, seeds__perturb=range(2))
        of_layers = recipients(self.store[1])
        designs = [(recipient, donor, HALVES) for recipient in of_layers for donor in range(900001, 900005)]
        designs += [(recipient, 900005, PARTS) for recipient in of_layers[::2]]
        for recipient, donor, factors in designs:
            exchange = ["--recipient", str(recipient), "--donor", str(donor), "--factors", factors]
            yield layers.planned([*self.store, *exchange, "--replicates", "2", *self.how])

    def float64(self) -> Iterator[Designed[RunConfig]]:
        yield from self.again(2, "float64")

    def decay(self) -> Iterator[Designed[RunConfig]]:
        long = ["train.stop_when_generalised=true", "checkpoint.keep=true", "train.steps=20000"]
        yield self.sweep(*long, optim__weight_decay=[0.01, 0.1, 1.0], seed=range(8))

    def no_decay(self) -> Iterator[Designed[RunConfig]]:
        long = ["train.stop_when_generalised=true", "checkpoint.keep=true", "train.steps=100000"]
        yield self.sweep(*long, optim__weight_decay=[0.0], seed=range(8))


STAGES: dict[str, Callable[[Diary], Iterator[Designed[RunConfig]]]] = {
    "census": Diary.census,
    "families": Diary.families,
    "answers": Diary.answers,
    "float64": Diary.float64,
    "decay": Diary.decay,
    "no-decay": Diary.no_decay,
}
LAST = {"census": 1984, "families": 950}
"""One more than the last seed of a stage."""


def parser() -> Parser:
    parser = Parser(prog="train_on_gpu.py", description=str(__doc__).replace("``", ""))
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--store", metavar="STORE", help="folder of the store; the same as store.path=STORE")
    parser.add_argument("--seeds", help="FIRST:END, without END")
    parser.add_argument("settings", nargs="*", metavar="SETTING")
    return parser


def is_store(word: str) -> bool:
    return word.startswith("store.path=")


@command(interrupted=GO_ON)
def main(argv: list[str]) -> int:
    """Train a stage."""
    arguments = parser().parse_intermixed_args(sorted(store_as_setting(argv), key=is_store))
    how = [word for word in arguments.settings if not is_store(word)]
    how = how if "dry_run=true" in how else ["require_clean=true", *how]
    stores = [word.partition("=")[2] for word in arguments.settings if is_store(word)]
    if len(stores) != 1:
        raise ConfigError(f"{len(stores)} stores are named: expected one, for example --store outputs/diary")
    seeds = branch.seeds_of(arguments.seeds) or range(LAST.get(arguments.stage, 0))
    if arguments.seeds and arguments.stage not in LAST:
        raise ConfigError(f"--seeds {arguments.seeds}: {arguments.stage} chooses its seeds itself, leave it out")
    if arguments.stage == "families" and (seeds.start % STRETCH or seeds.stop % STRETCH):
        raise ConfigError(f"--seeds {arguments.seeds}: expected whole stretches of {STRETCH} seeds, such as 400:450")
    diary = Diary(stores[0], how, seeds)
    plans = sum(STAGES[arguments.stage](diary), Designed[RunConfig]())
    return execute(plans, argv=["python", sys.argv[0], *argv]).exit_status


if __name__ == "__main__":
    sys.exit(main())
