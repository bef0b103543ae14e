# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # How many seeds are super?
#
# A sweep of random seeds, read from its store. Open this file in Jupyter with jupytext, or run it as a script:
#
#     GROK_STORE=results/store python notebooks/census.py
#
# The store comes from `python -m grok.run -m sweep=census`, or, in three minutes, from
# `python -m grok.run -m 'seed=range(0,64)' experiment=quickstart`.

# %%
import os

from analysis.command import show
from analysis.criteria import DIARY, REGIMES
from analysis.figures import drawings
from analysis.observations import Observations
from analysis.statistics.proportions import seeds_for_width
from analysis.studies import ask

store = Observations.read(os.environ.get("GROK_STORE", "results/store"))
print(f"{len(store.arithmetic):,} trajectories, {len(store.curves):,} evaluations")

# %% [markdown]
# ## What super means
#
# The definition lives in one place. By accuracy a seed is judged at a fixed step; by time it must be three times
# faster than the median seed, with seeds that never generalised counted as slower than their budget.

# %%
print(DIARY)
print(REGIMES)

# %%
census = ask("census", store)
show(census)

# %%
accuracy, times, curves = drawings(census)
accuracy

# %%
times

# %%
curves

# %% [markdown]
# ## How long does it take, and are there two kinds of seeds?
#
# A seed that has not generalised by its last step is *censored*: it takes longer than that, we do not know how much.
# The curve below respects that; a histogram would not.

# %%
survival = ask("survival", store)
show(survival)

# %%
drawings(survival)[0]

# %% [markdown]
# ## Another road, or the same road faster?

# %%
regimes = ask("regimes", store)
show(regimes)

# %%
portrait, order = drawings(regimes)
portrait

# %%
order

# %% [markdown]
# ## How many seeds would settle it?
#
# The diary saw 18 super seeds in 2,073. To know such a share to within a quarter of a percentage point:

# %%
print(f"{seeds_for_width(18 / 2073, 0.005):,} seeds for an interval of half a percentage point")
