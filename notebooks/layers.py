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
# # Which layers carry a seed's speed?
#
# The initial tensors of a super seed are moved, layer by layer, into a normal seed; batch order and split stay. All
# combinations of layers are run, each twice with a perturbation of a unit in the last place.
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
# ## Shapley shares
#
# A layer's share is its average contribution over all orders in which the layers could be exchanged. The shares sum
# to the effect of exchanging everything. A layer that starts constant must have a share of exactly zero. Each
# transplant stands by itself; a mean over them needs three or more.

# %%
studies["layers"]

# %%
studies["layers"].figures

# %% [markdown]
# ## Do layers work together?
#
# An interaction away from zero says that two layers of the donor do more, or less, together than apart.

# %%
studies["layers"].table("interactions")
