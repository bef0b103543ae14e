# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # The split, the weights or the order?
#
# Seeds of the three streams are crossed, and every cell is run twice, the second time with its initial weights moved by
# a unit in the last place. Without that second run, interaction between seeds and plain chaos would look the same.
#
#     python -m grok.run -m sweep=crossed
#     GROK_STORE=results/store python notebooks/crossed.py

# %%
import os

from analysis.command import show
from analysis.figures import drawings
from analysis.observations import Observations
from analysis.studies import ask

store = Observations.read(os.environ.get("GROK_STORE", "results/store"))

# %% [markdown]
# ## Variance shares
#
# The outcome of a run is the logarithm of the step at which it generalised; a run that did not counts with the end of
# the budget. Each share is the part of the variance of that outcome that would vanish if this source were fixed.

# %%
crossed = ask("crossed", store)
show(crossed)

# %%
shares, cells = drawings(crossed)
shares

# %%
cells

# %% [markdown]
# ## Given this order seed, are good weights likelier?
#
# The diary's author saw a batch order that made good model seeds 25% likelier. The best of many orders always looks
# good, so the table comes with a false-discovery rate, and the confirmed ratio picks the order on one half of the
# weights and measures it on the other.

# %%
crossed.rates

# %% [markdown]
# ## Is it the seed?
#
# If the shares of the weights and of the order are small beside chaos, a super seed is not a property of its numbers.

# %%
repeats = ask("repeatability", store)
show(repeats)

# %%
drawings(repeats)[0]
