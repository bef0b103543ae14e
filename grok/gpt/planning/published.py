"""Planning figures of the seed diary, beside the same figures computed here.

Each figure has the number that the diary states (``published.toml``) and the number that follows from its settings.
``grok plan --diary`` prints them as a table; so does a page of the documentation, which is made from this module.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

from grok.config.gpt import ModelConfig
from grok.gpt import costs


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a source."""

    about: str
    says: str
    """The words of the source."""
    published: float
    computed: float
    why: str
    """How the computed number is obtained, and what explains the difference."""
    unit: str = ""
    tolerance: float = 0.1
    """Largest relative difference at which the two agree; smaller where the source prints more digits."""

    @property
    def agrees(self) -> bool:
        """Whether the two numbers differ by at most the tolerance."""
        return abs(self.computed / self.published - 1) <= self.tolerance


_A100: Final = costs.MACHINES["A100"].peak["bf16"]


def _read() -> dict[str, Any]:
    return tomllib.loads(files("grok.gpt.planning").joinpath("published.toml").read_text(encoding="utf-8"))


def _hours(parameters: float, tokens: float, share: float = 0.4) -> float:
    return 6 * parameters * tokens / (share * _A100) / 3600


def _minutes(tokens: int, devices: int, rate: float) -> float:
    return tokens / (devices * rate) / 60


def figures() -> Sequence[Figure]:
    """Return all figures of the diary, in its order."""
    small, one_b = costs.gpt2_parameters(12, 768, 50_257, 1024), costs.gpt2_parameters(24, 1920, 50_257, 1024)
    wt103 = costs.count_parameters(ModelConfig(layers=24, d_model=1024, heads=16, context=1024, bias=False), 50_304)
    wt103_tokens, rule = 4_000 * 512 * 1024, costs.CHINCHILLA_TOKENS_PER_PARAMETER
    owt_step = 8 * 5 * 12 * 1024
    owt_tokens = 500_000 * owt_step
    xl_base, xl_large = 40_000 * 256 * 192, 100_000 * 128 * 384
    computed = {
        "335hr = 14.6 days": 335 / 24,
        "4.8k steps/day": 70e3 / (335 / 24),
        "~3 steps/min": 4_000 / (22 * 60),
        "117M params": small,
        "heads=16": 768 / 64,
        "345M params": costs.gpt2_parameters(24, 1024, 50_257, 1024),
        "1.5x10e-4": 1.5e-4,
        "Model (353M)": wt103.without_positions,
        "315M": wt103.without_positions,
        "1B param model": one_b,
        "~150TF": 6 * one_b * 16 * 1024,
        "factor seems to be 9": 6,
        "Forward pass factor is 6": 2,
        "9*1e6*16*1024=147 TFLOPs": 9 * 1e6 * 16 * 1024,
        "almost half": costs.MACHINES["V100"].peak["fp16"] / _A100,
        "25 days on 8xA100": 4_800 / 8 / 24,
        "2.7 days on 8xA100": 533 / 8 / 24,
        "flops is 2.4E+18": 6 * small * 3.3e9,
        "3.3B": rule * small,
        "Predicted loss=~3.3": costs.chinchilla_loss(117e6, 3.3e9),
        "PPL=24 to 27": math.exp(costs.chinchilla_loss(117e6, 3.3e9)),
        "PPL=16.1 to 16.3": math.exp(2.8),
        "2.1B tokens": wt103_tokens,
        "17 epochs": wt103_tokens / 119e6,
        "3.3B tokens suggested by Chinchilla": rule * wt103.without_positions,
        "1.4X longer": 22 / 15,
        "2.5X larger": wt103.without_positions / small,
        "75 minutes": _minutes(xl_base, 8, 60e3),
        "121 minutes": _minutes(xl_base, 8, 32.8e3),
        "766 minutes": _minutes(xl_base, 1, 32.8e3),
        "80 minutes": _minutes(xl_base, 16, 32.8e3),
        "430 minutes": _minutes(xl_large, 8, 21.5e3),
        "394 minutes": _minutes(xl_large, 16, 14.8e3),
        "984 minutes": _minutes(xl_large, 8, 14.8e3),
        "16.4hr": 984 / 60,
        "8*4=32 global instead of 256": 8 * 4,
        "240M samples total": owt_tokens / 1024,
        "30.7B tokens for training": owt_tokens,
        "65B total training tokens (7 epochs)": owt_tokens,
        "3.7 epochs/GPU (8M docs in dataset)": owt_tokens / 8 / 9e9,
        "135ms/step": 6 * small * owt_step / (8 * _A100),
        "theoratical time 1.8 days": _hours(small, owt_tokens, 0.47) / 8 / 24,
        "256hr": _hours(small, 9e9),
        "94hr": _hours(small, 3.3e9),
    }
    return [Figure(**row, computed=computed[row["says"]]) for row in _read()["diary"]]


def page() -> str:
    """Return the figures as a Markdown table."""
    lines = ["| figure | the diary says | computed | | explanation |", "|---|---|---|---|---|"]
    for row in figures():
        verdict = "agrees" if row.agrees else "**differs**"
        computed = f"{_shown(row.computed, row.unit)} {row.unit}".strip()
        lines.append(f"| {row.about} | {row.says} | {computed} | {verdict} | {row.why} |")
    return "\n".join(lines)


def _shown(value: float, unit: str) -> str:
    if unit == "parameters":
        return f"{value:,.0f}"
    if value and (value >= 1e6 or value < 1e-2):
        power = math.floor(math.log10(value))
        return f"{value / 10**power:.2f}e{power}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.4g}"


# Published task scores that stand beside one's own. Source: the log of the 580M model, which cites the others.

MODELS: Final = ("GPT2-M", "GPT-580M", "GPT2-L")
"""GPT-2 medium and large as that log cites them (GPT-Neo's page; The Pile, arXiv:2101.00027), and its own model."""

PUBLISHED: Final[dict[tuple[str, str], list[float]]] = {
    (task, metric): values for task, of in _read()["scores"].items() for metric, values in of.items()
}
"""By the harness's names of task and metric: the models' scores, in the order of ``MODELS``."""
