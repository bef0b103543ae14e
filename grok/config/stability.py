"""What is watched while a language model trains, what is done about it, and the words for it: limits in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from grok.config.common import LARGEST_SIZE
from grok.config.fields import setting

EVENTS: Final = {
    "not_finite": "the loss, the gradient, the weights or AdamW's second moments are not finite",
    "spike": "the loss stands far above its recent median",
    "rising": "the smoothed loss has stayed above where it started",
    "grad_norm": "the gradient norm stands far above its recent median",
    "adam_v": "AdamW's second moments stand far above their recent median",
    "weight_norm": "the norm of the weights stands far above its recent median",
    "grad_growth": "the gradient norm has grown many times over its lowest recent level",
    "weight_growth": "the norm of the weights has grown many times over its lowest recent level",
    "stuck": "the smoothed loss has stayed far above the best it has been",
    "stalled": "the gradient is zero, or the weights and moments no longer move",
    "repeated": "the same batches come again and again",
    "skipped": "the gradient overflowed in fp16, and the update was skipped",
    "skip_limit": "too many of the last updates were skipped",
    "rolled_back": "first step of a new branch",
}
"""What can happen in a step of a language model, in words: the log, the report and TensorBoard show them."""
LOSS_EVENTS: Final = frozenset({"not_finite", "spike", "rising"})
"""What the policy always acts on; on the rest under ``stability.signals=all``."""
PASSING: Final = frozenset({"not_finite", "spike", "grad_norm"})
"""What one batch can bring about, so that leaving its update out may be enough."""


@dataclass(kw_only=True)
class StabilityConfig:
    """Spikes, divergence and what is done about them."""

    policy: str = setting(
        "stop",
        "On a spike or a non-finite loss: go on (log; non-finite still stops), stop, leave the update out "
        "(skip_step), or roll back and then move the data order, skip the data, or cut the learning rate.",
        choices=("log", "stop", "skip_step", "new_data_seed", "skip_data", "cut_lr"),
    )
    signals: str = setting(
        "loss",
        "What the policy acts on: the loss, or also the norms of gradient and weights, AdamW's second moments, and a "
        "loss, weights or data that no longer move. What it does not act on is logged. With `all` a rollback looks "
        "for the onset in the log, and may return to every checkpoint that checkpoint.keep_every keeps.",
        choices=("loss", "all"),
        neutral="loss",
    )
    spike: float = setting(2.0, "Rise of the loss over its recent median that counts as a spike, in nats.", above=0)
    sigma: float = setting(
        10.0, "The rise, of a norm or moment that of its logarithm, must exceed this many robust deviations.", minimum=0
    )
    factor: float = setting(
        10.0, "A norm or second moment this many times its recent median is an outlier.", above=1, neutral=10.0
    )
    growth: float = setting(
        30.0,
        "Growth of the norm of gradient or weights over its lowest median of the last 20 windows that counts.",
        above=1,
        neutral=30.0,
    )
    window: int = setting(50, "Steps that the recent median looks at.", minimum=4, maximum=LARGEST_SIZE)
    rise: float = setting(1.0, "Stop when the smoothed loss stays this far above where it started, in nats.", above=0)
    rise_steps: int = setting(200, "Steps it must stay there.", minimum=1)
    stuck: float = setting(
        0.5, "A smoothed loss this far above the best it has been is stuck, in nats.", above=0, neutral=0.5
    )
    stuck_steps: int = setting(500, "Steps it must stay there.", minimum=1, neutral=500)
    skip_limit: int = setting(
        25,
        "Updates skipped (overflow in fp16, skip_step) among the last 50 before the run ends.",
        minimum=1,
        neutral=25,
    )
    least_scale: float = setting(
        1.0, "Least loss scale in fp16: an overflow at it is not finite, and no step to skip.", above=0, neutral=1.0
    )
    tries: int = setting(3, "Rollbacks before giving up.", minimum=1, maximum=100)
    snapshot_every: int = setting(100, "Steps between the states that a rollback can return to.", minimum=1)
    snapshots: int = setting(
        4, "How many such states are kept (each has the weights and both moments).", minimum=2, maximum=64
    )
    margin: int = setting(
        50, "A rollback goes back at least this far before the onset; twice as far at each try.", minimum=0
    )
    lr_cut: float = setting(0.5, "Factor on the learning rate of the cut_lr policy.", above=0, below=1)
    skip_steps: int = setting(50, "Steps of data beyond the onset that the skip_data policy leaves out.", minimum=0)

    def rolls_back(self) -> bool:
        """Return whether the policy returns to an earlier state."""
        return self.policy in ("new_data_seed", "skip_data", "cut_lr")

    def acts_on(self, event: str) -> bool:
        """Return whether the policy acts on an event, or it is only logged."""
        if self.policy == "log":
            return event in ("not_finite", "rising")
        return event in LOSS_EVENTS or self.signals == "all"
