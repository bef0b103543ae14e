"""Limits of what is checked while a language model trains, the policies on failures, and the names of events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from grok.config.common import LARGEST_SIZE
from grok.config.fields import setting

EVENTS: Final = {
    "not_finite": "the loss, the gradient, the weights or AdamW's second moments are not finite",
    "spike": "the loss is far above its recent median",
    "rising": "the smoothed loss has stayed above where it started",
    "grad_norm": "the gradient norm is far above its recent values",
    "adam_v": "AdamW's second moments are far above their recent values",
    "weight_norm": "the norm of the weights is far above its recent values",
    "grad_growth": "the gradient norm has grown many times over its lowest recent level",
    "weight_growth": "the norm of the weights has grown many times over its lowest recent level",
    "stuck": "the smoothed loss has stayed far above its lowest value",
    "stalled": "the gradient is zero, or weights and moments do not change",
    "repeated": "the same batches are repeated",
    "skipped": "the gradient overflowed in fp16, and the update was skipped",
    "skip_limit": "too many of the last updates were skipped",
    "rolled_back": "first step of a new branch",
}
"""Events of a step of a language model with their descriptions, for the log, the report and TensorBoard."""
LOSS_EVENTS: Final = frozenset({"not_finite", "spike", "rising"})
"""Events on which the policy always acts. On the others it acts with ``stability.signals=all``."""
SKIP_WINDOW: Final = 50
"""Number of last steps among which skipped updates are counted."""
PASSING: Final = frozenset({"not_finite", "spike", "grad_norm"})
"""Events that a single batch can cause, so that leaving out its update may be enough."""


@dataclass(kw_only=True)
class StabilityConfig:
    """Detection of spikes and divergence, and what happens then."""

    policy: str = setting(
        "stop",
        "On a spike or a loss that is not finite: continue (log; not finite still stops), stop, leave out the update "
        "(skip_step), or roll back and change the data order, skip the data, or cut the learning rate.",
        choices=("log", "stop", "skip_step", "new_data_seed", "skip_data", "cut_lr"),
    )
    signals: str = setting(
        "loss",
        "Events on which the policy acts. loss: spikes, rises and non-finite values of the loss. all: also outliers of "
        "norms and second moments, a stuck loss, stalled weights and repeated data. Other events are only logged. "
        "With all, a rollback searches the log for the onset and may return to each checkpoint of "
        "checkpoint.keep_every.",
        choices=("loss", "all"),
        neutral="loss",
    )
    spike: float = setting(2.0, "Rise of the loss over its recent median that counts as a spike, in nats.", above=0)
    sigma: float = setting(
        10.0, "The rise (of a norm or moment: in its logarithm) must exceed this many robust deviations.", minimum=0
    )
    factor: float = setting(
        10.0,
        "A norm this many times its highest value of 20 windows is an outlier; a second moment, 3.3 times as many. "
        "Values with heavy tails must rise further.",
        above=1,
        neutral=10.0,
    )
    growth: float = setting(
        30.0,
        "Growth of the gradient or weight norm, over its lowest median of 20 windows, that is an event.",
        above=1,
        neutral=30.0,
    )
    window: int = setting(50, "Number of steps of the recent median.", minimum=4, maximum=LARGEST_SIZE)
    rise: float = setting(1.0, "Stop if the smoothed loss stays this far above its start, in nats.", above=0)
    rise_steps: int = setting(200, "Number of steps that it must stay there.", minimum=1)
    stuck: float = setting(
        0.5, "A smoothed loss this far above its lowest value is stuck, in nats.", above=0, neutral=0.5
    )
    stuck_steps: int = setting(500, "Number of steps that it must stay there.", minimum=1, neutral=500)
    skip_limit: int = setting(
        25,
        f"Updates skipped (overflow in fp16, skip_step) among the last {SKIP_WINDOW} before the run ends.",
        minimum=1,
        neutral=25,
    )
    least_scale: float = setting(
        1.0,
        "Lowest loss scale in fp16; an overflow at it counts as not finite instead of a skipped step.",
        above=0,
        neutral=1.0,
    )
    tries: int = setting(
        3,
        "Largest number of rollbacks of one incident before the run ends. A calm stretch ends an incident: `window` "
        "steps, or the margin of its last rollback if that is more.",
        minimum=1,
        maximum=100,
    )
    snapshot_every: int = setting(100, "Steps between the states to which a rollback can return.", minimum=1)
    snapshots: int = setting(
        4, "Number of such states that are kept (each has the weights and both moments).", minimum=2, maximum=64
    )
    margin: int = setting(
        50, "Least number of steps from a rollback's state to the onset; doubled at each try.", minimum=0
    )
    lr_cut: float = setting(0.5, "Factor on the learning rate of the cut_lr policy.", above=0, below=1)
    skip_steps: int = setting(50, "Steps of data after the onset that the skip_data policy skips.", minimum=0)

    def rolls_back(self) -> bool:
        """Return whether the policy returns to an earlier state."""
        return self.policy in ("new_data_seed", "skip_data", "cut_lr")

    def acts_on(self, event: str) -> bool:
        """Return whether the policy acts on an event, or it is only logged."""
        if self.policy == "log":
            return event in ("not_finite", "rising")
        return event in LOSS_EVENTS or self.signals == "all"
