"""Layer transplants: ``grok layers --recipient SEED --donor SEED [overrides]``.

Asks   Which layers' initial weights make a seed fast or slow?
How    Trains the recipient with every combination of layers drawn from the donor's init stream. Split and
       order are the recipient's, unless --donor-order or --donor-split makes them factors, too. The final
       norm starts constant, so it is a negative control: its share must be 0. Each combination has
       ulp-perturbed replicates, because a single deterministic run cannot separate an effect from chaos.
Costs  2**k combinations times the replicates for k factors. The plan is printed first; with dry_run=true, only the
       plan.
Read   The layers section of the report: Shapley shares with intervals.

Examples:
  grok layers --recipient 0 --donor 23
  grok layers --recipient 0 --donor-init 512 seeds.order=8
  grok layers --recipient 0 --donor-init 512 --donor-order 8 --factors 'in=token_embedding;rest=blocks,head'
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from grok.commands.command import GO_ON, Parser, command, number
from grok.commands.compose import arithmetic, compose
from grok.commands.words import store_as_setting
from grok.config import ArithmeticConfig
from grok.config.common import refuse_too_many_runs
from grok.errors import ConfigError
from grok.execute import Designed, execute
from grok.execute.groups import prepare_runs
from grok.store import Purpose, Purposes
from grok.streams import MAX_SEED, derive_seed
from grok.sweeps.choosing import parser_of, refuse_taken

CONTROL = "final_norm"
STREAMS = ("order", "split")
"""Streams that can be factors in addition to layers."""

Groups = dict[str, tuple[str, ...]]
"""Prefixes for ``seeds.layers`` by the factor's name."""


def factors(config: ArithmeticConfig) -> list[str]:
    """Return the layers with random initial weights, as prefixes for ``seeds.layers``, and the control."""
    model = config.model
    names = ["token_embedding"] + ["position_embedding"] * (model.positions == "learned")
    names += [f"blocks.{layer}.{part}" for layer in range(model.layers) for part in ("attention", "mlp")]
    return names + ["head"] * (model.bias or not model.tied) + [CONTROL] * model.final_norm


def groups_of(text: str) -> Groups:
    """Return the factors in the text of ``--factors``.

    Raises:
        ConfigError: the text cannot be parsed, or two factors share a tensor.

    >>> groups_of("embedding=token_embedding,position_embedding;head=head")
    {'embedding': ('token_embedding', 'position_embedding'), 'head': ('head',)}
    """
    groups: Groups = {}
    for part in text.split(";"):
        name, equals, prefixes = (word.strip() for word in part.partition("="))
        layers = tuple(prefix.strip() for prefix in prefixes.split(","))
        if not name or not equals or not all(layers):
            raise ConfigError(f"--factors: {part!r} is not NAME=LAYER,LAYER (parts are separated by ;)")
        if name in groups or name in STREAMS:
            raise ConfigError(f"--factors: the name {name!r} is used twice or reserved, use another one")
        groups[name] = layers
    every = [prefix for layers in groups.values() for prefix in layers]
    for one, other in itertools.permutations(every, 2):
        if one == other or one.startswith(f"{other}."):
            raise ConfigError(f"--factors: {one} is part of {other}; a tensor belongs to one factor")
    return groups


def combinations(names: Sequence[str]) -> list[frozenset[str]]:
    """Return the factors from the donor in each run: all subsets.

    Raises:
        ConfigError: there are too many runs.
    """
    refuse_too_many_runs(2 ** len(names), f"all combinations of {len(names)} factors (--factors makes them fewer)")
    return [frozenset(s) for size in range(len(names) + 1) for s in itertools.combinations(names, size)]


def parser() -> Parser:
    """Return the command's arguments."""
    parser = parser_of("grok layers", __doc__)
    seed = number(int, minimum=0, maximum=MAX_SEED)
    parser.add_argument(
        "--recipient", type=seed, required=True, help="master seed whose split, order and weights are kept"
    )
    donor = parser.add_mutually_exclusive_group(required=True)
    donor.add_argument("--donor", type=seed, help="master seed whose initial weights are transplanted")
    donor.add_argument("--donor-init", type=seed, metavar="SEED", help="init seed whose weights are transplanted")
    for stream in STREAMS:
        parser.add_argument(
            f"--donor-{stream}", type=seed, metavar="SEED", help=f"donor's {stream} seed: the {stream} is a factor, too"
        )
    parser.add_argument("--factors", help="your own groups of layers: 'NAME=LAYER,LAYER;NAME=LAYER'")
    several = number(int, minimum=2)  # the report needs what chaos does
    parser.add_argument("--replicates", type=several, default=2, help="ulp-perturbed replicates of each combination")
    parser.add_argument("--store", metavar="STORE", help="folder of the store; the same as store.path=STORE")
    return parser


def planned(argv: Sequence[str]) -> Designed[ArithmeticConfig]:
    """Print the plan and return the runs of all combinations, with their design.

    Raises:
        ConfigError: the arguments are wrong.
    """
    arguments = parser().parse_intermixed_args(store_as_setting(argv))
    why = "--recipient is the master seed, --replicates counts moves by one ulp, and --factors says what is exchanged"
    refuse_taken(arguments.overrides, ("seed=", "perturb.ulps=", "seeds.perturb=", "seeds.layers"), why)
    settings = compose([*arguments.overrides, f"seed={arguments.recipient}", "perturb.ulps=1"])
    recipient = arithmetic(settings)
    own, donor = recipient.stream_seeds(), arguments.donor
    init = derive_seed(donor, "init") if donor is not None else arguments.donor_init
    streams = {s: seed for s in STREAMS if (seed := getattr(arguments, f"donor_{s}")) is not None}
    for stream, seed in {"init": init, **streams}.items():
        if seed == getattr(own, stream):
            raise ConfigError(
                f"the donor's {stream} seed {seed} is also that of --recipient {arguments.recipient}: "
                "a transplant needs two different seeds"
            )
    groups = groups_of(arguments.factors) if arguments.factors else {name: (name,) for name in factors(recipient)}
    names = [*groups, *streams]
    exchanged = combinations(names)
    refuse_too_many_runs(len(exchanged) * arguments.replicates, f"--replicates {arguments.replicates}")
    unit: dict[str, Any] = {"recipient": arguments.recipient}
    unit |= {"donor_init": init} if donor is None else {"donor": donor}
    unit |= {f"donor_{stream}": seed for stream, seed in streams.items()}
    configs, units = [], []
    for subset, replicate in itertools.product(exchanged, range(arguments.replicates)):
        layers = [name for name in groups if name in subset]
        exchanged_streams = {stream: seed for stream, seed in streams.items() if stream in subset}
        configs.append(
            arithmetic(
                settings,
                seeds__layers={prefix: init for name in layers for prefix in groups[name]},
                seeds__perturb=replicate,
                **{f"seeds__{stream}": seed for stream, seed in exchanged_streams.items()},
            )
        )
        units.append({**unit, "exchanged": layers, "streams": [*exchanged_streams], "repeat": replicate})
    whose = f"init seed {init}" if donor is None else f"seed {donor}"
    print(f"seed {arguments.recipient} with weights of {whose}: {', '.join(names)} exchanged, {len(configs)} runs")
    # of a donor that is named by seeds, the run with these in place of the recipient's
    whole = arithmetic(settings, seeds__init=init) if donor is None else arithmetic(settings, seed=donor)
    whole = replace(whole, seeds=replace(whole.seeds, **streams))
    (origin,) = prepare_runs(configs[:1])  # it has nothing of the donor
    # the unperturbed runs, stored or not: the plan does not train them
    plain = [run.under("perturb.ulps", 0).run_id for run in prepare_runs([recipient, whole])]
    purposes = [Purpose(role="cell", unit=one, parent_run_id=origin.run_id, donor_run_id=plain[1]) for one in units]
    beside = [
        (run_id, Purpose(role=role, unit=unit, choice="named"))
        for role, run_id in zip(("recipient", "donor"), plain, strict=True)
    ]
    return Designed(configs, Purposes("layers", purposes, beside))


@command(interrupted=GO_ON)
def main(argv: list[str]) -> int:
    """Train the combinations."""
    return execute(planned(argv), argv=["python", "-m", "grok.sweeps.layers", *argv]).exit_status


if __name__ == "__main__":
    sys.exit(main())
