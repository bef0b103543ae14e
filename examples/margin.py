"""Your own metric: the right logit minus the largest wrong one, on both sets.

    grok sweep eval.metric_plugins.margin._target_=margin.margin 'seed=range(0,8)' experiment=quickstart

The report draws it over the time relative to generalisation, like the built-in metrics.
"""

import torch

from grok.plugins import Moment


def margin(moment: Moment) -> dict[str, float]:
    """Return the median margin on the training and on the validation set: columns margin_train and margin_val."""
    medians = {}
    for name, examples in (("train", moment.train_set), ("val", moment.val_set)):
        logits, right = moment.logits(examples), moment.classes(examples)[:, None]
        wrong = logits.scatter(1, right, -torch.inf).max(1).values
        medians[name] = float((logits.gather(1, right)[:, 0] - wrong).median())
    return medians
