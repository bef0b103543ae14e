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
# # Which layers make a seed fast?
#
# Layers of a normal seed get the initial tensors of a super seed; batch order and split stay. All combinations of
# layers are run, each twice with a perturbation of a unit in the last place.
#
#     grok layers --recipient SEED --donor SEED
#     make notebooks GROK_STORE=results/store

# %%
import os
from pathlib import Path

import grok

here, above = Path("results/store"), Path("../results/store")  # Jupyter starts a notebook in its own folder
path = Path(os.environ.get("GROK_STORE", above if above.is_dir() else here))
studies = grok.studies(path)

# %% [markdown]
# ## Together or one by one
#
# First: do the layers act one by one, or does what one changes depend on the others? Only where their effects add up
# does each layer have a Shapley share: its average contribution over all orders of exchanging the layers. The shares
# sum to the effect of exchanging all layers. Each transplant is a separate result.

# %%
studies["layers"]

# %%
studies["layers"].table("shares")

# %% [markdown]
# ## Every combination
#
# What runs with just these layers exchanged came to: the mean, the lowest and the highest.

# %%
studies["layers"].table("combinations")
