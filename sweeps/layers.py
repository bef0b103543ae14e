"""Layer transplants: ``python -m sweeps.layers --recipient SEED --donor SEED [overrides]``.

Asks   Which layers' initial weights make a seed what it is?
How    Trains the recipient with every combination (or a sampled fraction) of layers drawn from
       the donor's init stream; split and order stay the recipient's. The final norm, which starts
       constant, goes along as a negative control: its share must be 0. Each combination is run
       with ulp-perturbed replicates, because one deterministic run cannot tell an effect from chaos.
Costs  2**k combinations times the replicates for k factors (full), or what --combinations says;
       the plan is printed first, and dry_run=true prints nothing else.
Read   The layers section of the report: Shapley shares with intervals. Run it both ways round.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence

from grok.cli.command import GO_ON, Parser, command, program
from grok.cli.compose import compose
from grok.cli.words import store_as_setting
from grok.config import ArithmeticConfig
from grok.errors import ConfigError
from grok.execute import execute
from grok.streams import Stream, derive_seed
from sweeps.settings import arithmetic

CONTROL = "final_norm"


def factors(config: ArithmeticConfig) -> list[str]:
    """Return the layers that draw randomness, as prefixes for ``seeds.layers``, and the control."""
    names = ["token_embedding"]
    if config.model.positions == "learned":
        names.append("position_embedding")
    for layer in range(config.model.layers):
        names += [f"blocks.{layer}.attention", f"blocks.{layer}.mlp"]
    if config.model.bias or not config.model.tied:
        names.append("head")
    if config.model.final_norm:
        names.append(CONTROL)
    return names


def combinations(names: Sequence[str], wanted: int | None, seed: int) -> list[frozenset[str]]:
    """Return which factors come from the donor in each run: all subsets, or ``wanted`` sampled with their complements.

    Raises:
        ConfigError: too few to tell two-way interactions apart.
    """
    everything = [frozenset(s) for size in range(len(names) + 1) for s in itertools.combinations(names, size)]
    if wanted is None or wanted >= len(everything):
        return everything
    needed = 1 + len(names) + len(names) * (len(names) - 1) // 2
    if wanted < 2 * needed:
        raise ConfigError(
            f"--combinations {wanted}: {len(names)} factors need at least {2 * needed} to tell their two-way "
            f"interactions apart; the full design has {len(everything)}"
        )
    chosen = [frozenset[str](), frozenset(names)]
    for i in Stream("sweep", seed).at("layers").permutation(len(everything)):
        subset = everything[int(i)]
        if len(chosen) >= wanted:
            break
        if subset not in chosen:
            chosen += [subset, frozenset(names) - subset]
    return chosen


def parser() -> Parser:
    """Return the command's arguments."""
    parser = Parser(
        prog=program("layers", "sweeps.layers"),
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--recipient", type=int, required=True, help="master seed whose split, order and weights are kept"
    )
    parser.add_argument("--donor", type=int, required=True, help="master seed whose initial weights are transplanted")
    parser.add_argument("--combinations", type=int, help="sample so many instead of the full design")
    parser.add_argument("--replicates", type=int, default=2, help="ulp-perturbed replicates of each combination")
    parser.add_argument("--store", metavar="STORE", help="folder of the store; the same as store.path=STORE")
    parser.add_argument("overrides", nargs="*", metavar="NAME=VALUE", help="settings, as for grok.run")
    return parser


@command(interrupted=GO_ON)
def main(argv: list[str]) -> int:
    """Train the combinations."""
    design = parser().parse_intermixed_args(store_as_setting(argv))
    if design.replicates < 1:
        raise ConfigError(f"--replicates {design.replicates}: expected at least 1")
    if design.donor == design.recipient:
        raise ConfigError(f"--donor {design.donor} is the recipient: transplants need two different seeds")
    for word in design.overrides:
        if word.startswith(("seed=", "perturb.ulps=")):
            raise ConfigError(f"{word}: --recipient is the master seed here, and perturb.ulps is 1")
    settings = compose([*design.overrides, f"seed={design.recipient}", "perturb.ulps=1"])
    names = factors(arithmetic(settings))
    donor = derive_seed(design.donor, "init")
    runs = [
        arithmetic(settings, seeds__layers=dict.fromkeys(sorted(subset), donor), seeds__perturb=replicate)
        for subset in combinations(names, design.combinations, design.recipient)
        for replicate in range(design.replicates)
    ]
    print(f"{len(names)} factors: {', '.join(names)}; {len(runs)} runs")
    return execute(runs, argv=["python", "-m", "sweeps.layers", *argv]).exit_status


if __name__ == "__main__":
    sys.exit(main())
