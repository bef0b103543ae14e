# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Which layers carry a seed's speed?
#
# The initial tensors of a super seed are moved, layer by layer, into a normal seed; batch order and split stay. All
# combinations of layers are run, each twice with a perturbation of a unit in the last place.
#
#     python -m sweeps.layers --recipient SEED --donor SEED
#     GROK_STORE=results/store python notebooks/layers.py

# %%
import os

from analysis.command import show
from analysis.figures import drawings
from analysis.observations import Observations
from analysis.studies import ask

store = Observations.read(os.environ.get("GROK_STORE", "results/store"))

# %% [markdown]
# ## Shapley shares
#
# A layer's share is its average contribution over all orders in which the layers could be exchanged. The shares sum
# to the effect of exchanging everything. A layer that starts constant must have a share of exactly zero. Each
# transplant stands by itself; a mean over them needs three or more.

# %%
layers = ask("layers", store)
show(layers)

# %%
drawings(layers)[0]

# %% [markdown]
# ## Do layers work together?
#
# An interaction away from zero says that two layers of the donor do more, or less, together than apart.

# %%
layers.interactions

# %% [markdown]
# ## The transplants behind it

# %%
for result in layers.results:
    total = result.attribution.total
    print(f"{result.transplant.name}: {len(result.transplant.rows)} runs, all layers: {total.plain(2)}")
