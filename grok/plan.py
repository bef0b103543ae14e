"""``grok plan experiment=gpt/NAME [overrides]``: estimates parameters, time, memory and cost of a run."""

from __future__ import annotations

import argparse
import math
import sys

from grok.commands.command import Parser, command, number, positive
from grok.commands.compose import gpt_settings
from grok.config import GptConfig
from grok.errors import ConfigError
from grok.execute.groups import training_tokens, with_budget
from grok.gpt.costs import FITTED_FROM, MACHINES, Plan, chinchilla_loss, machine
from grok.gpt.planning.published import page
from grok.terminal import duration, size
from grok.text.corpus import open_corpus


@command()
def main(argv: list[str]) -> int:
    """Print the plan."""
    arguments = parser().parse_intermixed_args(argv)
    print(page() if arguments.diary else _page(arguments))
    return 0


def parser() -> Parser:
    """Return the command's arguments."""
    parser = Parser(
        prog="grok plan",
        description="Parameters, FLOPs, time, memory, cost and Chinchilla tokens of a GPT run.",
        epilog="example: grok plan experiment=gpt/gpt2_117m --device H200 --mfu 0.4 --price 3",
    )
    parser.add_argument("overrides", nargs="*", metavar="NAME=VALUE", help="as for `grok run`: experiment=gpt/NAME ...")
    parser.add_argument("--device", default="A100", help=f"one of {', '.join(MACHINES)} (default A100)")
    parser.add_argument("--devices", type=positive, default=1, help="how many (default 1)")
    parser.add_argument(
        "--mfu",
        type=number(float, above=0, maximum=1),
        default=0.4,
        help="share of the peak FLOP/s in use (default 0.4)",
    )
    parser.add_argument("--price", type=number(float, minimum=0), help="price of a device for an hour")
    parser.add_argument("--vocab-size", type=positive, help="number of ids, if neither data.path nor the preset has it")
    parser.add_argument(
        "--diary",
        action="store_true",
        help="compare published figures with this planner's, and print no plan",
    )
    return parser


def _page(arguments: argparse.Namespace) -> str:
    config = gpt_settings(["mode=gpt", *arguments.overrides])
    if config.train.epochs is not None and config.data.path is None:
        raise ConfigError(
            f"train.epochs={config.train.epochs:g} is a length in passes over the data: give data.path=DIR too, "
            "or train.steps=N or train.tokens=N instead"
        )
    config = with_budget(config)
    corpus = open_corpus(config.data.path) if config.data.path else None
    vocab_size = arguments.vocab_size or config.model.vocab_size
    vocab_size = vocab_size or (corpus.vocab_size if corpus else config.target.vocab_size)
    if vocab_size is None:
        raise ConfigError("the vocabulary is not known: give data.path=DIR, model.vocab_size=N or --vocab-size N")
    planned = Plan(
        config,
        vocab_size,
        machine(arguments.device),
        devices=arguments.devices,
        mfu=arguments.mfu,
        corpus_tokens=sum(training_tokens(config)) if corpus else None,
    )
    return _shown(config, planned, vocab_size, arguments.price)


def _shown(config: GptConfig, planned: Plan, vocab_size: int, price: float | None) -> str:
    n, peak = planned.parameters, planned.machine.peak_of(config.precision)
    target, one = config.target, planned.layout
    room = "" if one.accumulated or one.gradients > one.activations else ", in the place of freed activations"
    own = (
        f" (the preset: {target.params:,} at {target.vocab_size:,} ids)" if target.params and target.vocab_size else ""
    )
    t8 = "exact" if planned.formula == n.total else "exact for GPT-2's architecture; this model has another"
    rows = [
        ("model", f"{config.experiment}: {config.model.layers} layers of {config.model.d_model}, {vocab_size:,} ids"),
        ("parameters", f"{n.total:,}{own}"),
        ("  blocks / embedding", f"{n.blocks:,} / {n.embedding:,}"),
        ("  without positions", f"{n.without_positions:,}"),
        ("  n(12h²+13h)+vh+sh+2h", f"{planned.formula:,} ({t8})"),
        ("tokens", _tokens(config, planned)),
        ("  epochs", f"{planned.epochs:.2f} of {planned.corpus_tokens:,}" if planned.epochs else "give data.path=DIR"),
        ("  Chinchilla-optimal",
         f"{planned.chinchilla_tokens:.3g}, 20 per parameter; "
         f"this run has {planned.tokens / planned.chinchilla_tokens:,.3g} times as many"),
        ("  loss by Chinchilla's fit", _fit(n.total, planned.tokens)),
        ("FLOPs",
         f"{planned.flops:.3g} ({planned.flops_per_token:.3g} per token, a third of them in the forward pass)"),
        ("  by 6 N tokens", f"{planned.six_n:.3g}"),
        ("memory of a device", f"{size(planned.layout.bytes)} of {size(planned.machine.memory)}"),
        ("  weights, moments", size(planned.layout.state)),
        ("  gradients", f"{size(one.gradients)}{room}"),
        ("  activations, logits", size(planned.layout.activations)),
        ("  fits", "yes" if planned.layout.bytes <= planned.machine.memory else
         "no: train.micro_batch, train.recompute and, on several devices, train.parallel=fsdp take less"),
        ("traffic of a device", f"{size(planned.layout.traffic)} per step" if planned.devices > 1 else "none"),
        ("time", f"{duration(planned.seconds)} on {planned.devices} x {planned.machine.name} at {planned.mfu:.0%} of"
                 f" {peak / 1e12:,.4g} TFLOP/s ({config.precision})"),
        ("device hours", f"{planned.device_hours:,.3g}"),
        ("cost", f"{planned.device_hours * price:,.2f}" if price is not None else "give --price of a device-hour"),
    ]  # fmt: skip
    return "\n".join(f"{name:<28}{text}" for name, text in rows)


def _tokens(config: GptConfig, planned: Plan) -> str:
    most, ramp = "at most " if config.train.context_ramp else "", config.train.batch_ramp or config.train.context_ramp
    length = f"in {config.train.steps:,} steps of up to" if ramp else f"= {config.train.steps:,} steps of"
    return f"{most}{planned.tokens:,} {length} {planned.tokens_per_step:,}"


def _fit(parameters: int, tokens: int) -> str:
    if parameters < FITTED_FROM:
        return f"none: the fit is for models of at least {FITTED_FROM / 1e6:.0f}M parameters"
    loss = chinchilla_loss(parameters, tokens)
    return f"{loss:.2f} nats, perplexity {math.exp(loss):.3g} (web text, each token once)"


if __name__ == "__main__":
    sys.exit(main())
