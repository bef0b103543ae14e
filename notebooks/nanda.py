# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Nanda's result in twenty lines
#
# A transformer of one layer learns a + b modulo a prime. Nanda et al. (2023) found how: it turns each number into
# angles at a few *key frequencies* and adds the angles. They measured it by two losses. The *restricted* loss keeps
# only the waves of the key frequencies, the *excluded* loss removes them. The restricted loss falls long before the
# validation loss does: the circuit grows while nothing is to be seen.
#
# This is their model at modulus 59 instead of 113, so that it trains in minutes on two cores. The run is in the store
# afterwards, and a second look trains nothing.

# %%
import json
import os
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

import grok

here, above = Path("results/store"), Path("../results/store")  # Jupyter starts a notebook in its own folder
path = Path(os.environ.get("GROK_STORE", above if above.is_dir() else here))
smaller = {"task__modulus": 59, "task__train_fraction": 0.4, "train__batch_size": 1392, "train__steps": 8000}
run = grok.run("experiment=nanda", **smaller, eval__metrics=["fourier", "circuit"], store=path)

# %%
curve = grok.open_store(path).curves([run["run_id"]]).set_index("step")
curve = curve.join(pd.DataFrame([json.loads(text) for text in curve["metrics"]], index=curve.index))
losses, shares = plt.subplots(2, sharex=True, height_ratios=(2, 1), layout="constrained")[1]
curve[["train_loss", "val_loss", "restricted_loss", "excluded_loss"]].plot(ax=losses, logy=True, ylabel="loss (nats)")
losses.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4)
shares = curve[["val_acc", "fourier_top5"]].plot(ax=shares, ylim=(0, 1), ylabel="share")

# %% [markdown]
# `fourier_top5` is the share of the embedding's power that its five strongest frequencies have. It rises from the
# start, and so do the waves of the logits; the accuracy follows. Other seeds choose other frequencies:
# `grok.sweep("experiment=nanda", **smaller, seed=range(0, 8), eval__metrics=["fourier", "circuit"], store=path)`, then
# `grok.studies(path)["mechanism"]` says whether the circuit leads in all of them.

# %%
grok.studies(path)["mechanism"]
