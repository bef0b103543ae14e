"""A training script of your own under the laboratory's seeds: handwritten digits, 64 columns, a small network.

    grok sweep task.plugin._target_=digits.train 'seed=range(0,32)' train.steps=300 train.batch_size=64 \\
        optim.lr=3e-3 eval.every=50

``config`` has the run's settings, ``streams`` one seed for each source of randomness, and the names of runs, the
store, resuming and the report are the laboratory's. It needs scikit-learn, whose data set this is.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn


def train(config: Any, streams: Any, width: int = 64) -> Iterator[dict[str, Any]]:
    pixels, digits = load_digits(return_X_y=True)
    rows = np.random.default_rng(streams.split).permutation(len(digits))
    x, y = torch.tensor(pixels[rows] / 16, dtype=torch.float32), torch.tensor(digits[rows])
    n = int(config.task.train_fraction * len(y))

    torch.manual_seed(streams.init)
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.optim.lr, weight_decay=config.optim.weight_decay)
    order = np.random.default_rng(streams.order)
    for step in range(1, config.train.steps + 1):
        batch = order.choice(n, config.train.batch_size, replace=False)
        loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % config.eval.every == 0 or step == config.train.steps:
            with torch.no_grad():
                logits = model(x[n:])
            val_loss = nn.functional.cross_entropy(logits, y[n:]).item()
            val_acc = (logits.argmax(1) == y[n:]).double().mean().item()
            measured = {"train_loss": loss.item(), "val_loss": val_loss, "val_acc": val_acc}
            yield {"step": step, **measured, "weights": model.state_dict()}
