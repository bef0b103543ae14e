"""``grok find {lr|batch_size} experiment=gpt/NAME data.path=DIR [overrides]``: finds settings by short trials.

``lr`` runs a learning-rate range test. It prints the rate at which the loss falls fastest and the
ratio of the configured rate to it, and writes its curve. ``batch_size`` measures the speed of
micro-batches of doubling size. No run is trained or stored.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from grok.commands.command import Parser, command, number, positive, refuse_unwritable
from grok.commands.compose import gpt_settings
from grok.config.gpt import GptConfig
from grok.errors import ConfigError, in_words

if TYPE_CHECKING:
    from grok.gpt.planning.finders import RangeTest
    from grok.gpt.training.trainer import Trainer


MOST_STEPS: Final = 1_000_000
"""Largest number of rates of a range test; each is a point of its curve."""

_EXAMPLES: Final = """\
examples:
  grok find lr experiment=gpt/shakespeare_char data.path=data/shakespeare --out results/lr
  grok find batch_size experiment=gpt/shakespeare_char data.path=data/shakespeare
"""


@command()
def main(argv: list[str]) -> int:
    """Run the trials and print the result."""
    arguments = parser().parse_intermixed_args(argv)
    if arguments.first >= arguments.last:
        raise ConfigError(f"--first {arguments.first:g} --last {arguments.last:g}: expected --first below --last")
    if arguments.out is not None:
        refuse_unwritable("--out", arguments.out, folder=True)
    config = gpt_settings(["mode=gpt", *arguments.overrides])
    print(_rate(config, arguments) if arguments.what == "lr" else _batch_size(config, arguments))
    return 0


def parser() -> Parser:
    """Return the command's arguments."""
    parser = Parser(
        prog="grok find",
        description="Find settings of a language model by short trials; no run is trained or stored.",
        epilog=_EXAMPLES,
    )
    parser.add_argument(
        "what",
        choices=("lr", "batch_size"),
        help="lr: a learning-rate range test; batch_size: the time of micro-batches of doubling size",
    )
    parser.add_argument("overrides", nargs="*", metavar="NAME=VALUE", help="as for `grok run`: experiment=gpt/NAME ...")
    rate, steps = number(float, above=0), number(int, minimum=10, maximum=MOST_STEPS)
    parser.add_argument("--steps", type=steps, default=100, help="updates of the range test (default 100)")
    parser.add_argument("--first", type=rate, default=1e-6, help="lowest rate tried (default 1e-6)")
    parser.add_argument("--last", type=rate, default=1.0, help="highest rate tried (default 1)")
    parser.add_argument("--largest", type=positive, default=512, help="largest micro-batch tried (default 512)")
    parser.add_argument("--out", type=Path, help="folder for the range test's figure and data")
    return parser


def _rate(config: GptConfig, arguments: argparse.Namespace) -> str:
    from grok.gpt.planning.finders import range_test

    trainer = _trainer(config)
    with trainer.numerics.active():
        test = range_test(trainer, first=arguments.first, last=arguments.last, steps=arguments.steps)
    lines = [
        f"loss falls fastest at rate {test.suggestion:.2e} ({len(test.rates)} rates from {test.rates[0]:.1e} "
        f"to {test.rates[-1]:.1e})",
        f"optim.lr={test.configured:g} is {test.ratio:.3g} times that rate",
        "Under a warm-up and a decay the best peak rate is usually higher than the steepest point.",
    ]
    if arguments.out is not None:
        with in_words(ConfigError, f"--out {arguments.out} cannot be written: give another folder", OSError):
            _write(test, arguments.out)
        lines.append(f"written: {arguments.out}/range_test.csv, .png, .svg")
    return "\n".join(lines)


def _write(test: RangeTest, out: Path) -> None:
    import pandas as pd
    from matplotlib.figure import Figure

    out.mkdir(parents=True, exist_ok=True)
    table = pd.DataFrame({"lr": test.rates, "loss": test.losses, "smooth_loss": test.smooth})
    table.to_csv(out / "range_test.csv", index=False)
    figure = Figure(figsize=(6, 3.6))
    axes = figure.subplots()
    axes.semilogx(test.rates, test.losses, color="#9aa5b1", linewidth=1, label="each batch")
    axes.semilogx(test.rates, test.smooth, color="#1f4e79", linewidth=2, label="smoothed")
    axes.axvline(test.suggestion, color="#c05621", linestyle="--", label=f"steepest, {test.suggestion:.1e}")
    axes.axvline(test.configured, color="#2f855a", linestyle=":", label=f"configured, {test.configured:.1e}")
    axes.set(xlabel="learning rate", ylabel="training loss (nats)", title="Learning-rate range test")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    for kind in ("png", "svg"):
        figure.savefig(out / f"range_test.{kind}", dpi=150, bbox_inches="tight")


def _batch_size(config: GptConfig, arguments: argparse.Namespace) -> str:
    from grok.gpt.planning.finders import best, measure

    trainer = _trainer(config)
    lines = [f"{'sequences':>9}{'tokens/s':>12}{'peak memory':>13}"]
    with trainer.numerics.active():
        tried = list(measure(trainer, largest=arguments.largest))
    lines += [f"{s.sequences:>9}{s.tokens_per_second:>12,.0f}{s.memory / 1e9:>10.2f} GB" for s in tried]
    return "\n".join([*lines, _advice(config, best(tried).sequences, arguments.largest)])


def _advice(config: GptConfig, fastest: int, largest: int) -> str:
    """Return the micro-batch to use: one that divides every batch, because compiled steps have one shape."""
    sizes = [config.train.batch_size, *config.train.batch_ramp[:2]]
    common = math.gcd(*sizes)
    micro = max(size for size in range(1, common + 1) if common % size == 0 and size <= fastest)
    if micro == config.train.batch_size:
        return f"train.micro_batch={micro}: the whole batch at once"
    untried = f"larger ones were not tried (--largest {largest})"
    reason = untried if 2 * fastest > largest else "larger ones are less than 3% faster, or do not fit"
    whole = " and ".join(map(str, sizes))
    return f"train.micro_batch={micro}: of sizes up to {fastest}, the largest that divides {whole}; {reason}"


def _trainer(config: GptConfig) -> Trainer:
    import torch

    from grok.gpt.training.batches import open_data
    from grok.gpt.training.numerics import Numerics
    from grok.gpt.training.trainer import Trainer

    device = config.device if config.device != "auto" else ("cuda" if torch.cuda.is_available() else "cpu")
    config.numerics.compile = False  # the shapes change, and compiling each takes longer than the trial
    texts = open_data(config)
    return Trainer(config, texts, Numerics.of(config, device))


if __name__ == "__main__":
    sys.exit(main())
