#!/usr/bin/env bash
# Trains the runs of results/papers, cut short for two cores. Give it again and it goes on.
#   results/papers/train.sh [STORE]     STORE: results/papers/store
# PLAN=1 results/papers/train.sh plans and trains nothing. ONLY=grokfast: one paper.
set -euo pipefail
store=${1:-results/papers/store}
how=(executor=inline store.path="$store")
if [ -n "${PLAN:-}" ]; then how+=(dry_run=true); else how+=(require_clean=true); fi
sweep() { # PAPER WORDS...
  [[ "${ONLY:-$1}" == "$1" ]] || return 0
  python -m grok sweep "${@:2}" "${how[@]}" # the checkout that this script stands in, not what is installed
}

# Lee et al. 2024: with a filter, Adam with coupled decay as in the paper's code
ema=(sweep=grokfast_2024 experiment=grokfast optim.grokfast=ema)
ma=(sweep=grokfast_2024 experiment=grokfast optim.grokfast=ma optim.grokfast_lamb=5 optim.weight_decay=0.01)
fine=(train.steps=3000 eval.every=20 train.stop_every=20)
coupled=(optim.plugin._target_=torch.optim.Adam)
sweep grokfast "${ema[@]}" 'seed=range(0,4)' "${fine[@]}" "${coupled[@]}"
sweep grokfast "${ma[@]}" 'seed=range(0,4)' "${fine[@]}" "${coupled[@]}"

# Without filter, cut: the paper's baseline (no decay). Then the filter with AdamW, as in our experiment
slow=(sweep=grokfast_2024 experiment=grokfast optim.grokfast=none seed=0,1 eval.every=100 train.stop_every=100)
sweep grokfast "${slow[@]}" train.steps=5000 optim.weight_decay=0
sweep grokfast "${ema[@]}" seed=0,1 "${fine[@]}"
# The decay of the paper without its filter
sweep grokfast "${slow[@]}" train.steps=3000 "${coupled[@]}"

# Prieto et al. 2025: without weight decay
prieto=(sweep=prieto_2025 experiment=nanda train.stop_horizon=100 eval.every=50)
sweep prieto "${prieto[@]}" 'seed=range(0,3)' train.steps=2000 train.loss=softmax optim.orthogonal_gradient=true
sweep prieto "${prieto[@]}" seed=0 train.steps=1000 train.loss=stablemax optim.orthogonal_gradient=false
sweep prieto "${prieto[@]}" 'seed=range(0,3)' train.steps=3000 train.loss=softmax optim.orthogonal_gradient=false

# Power et al. 2022: three fractions of x/y mod 97
power=(sweep=power_2022 experiment=openai seed=0,1 train.steps=4000 train.stop_horizon=100 eval.schedule=every eval.every=50)
sweep power "${power[@]}" task.train_fraction=0.8,0.7,0.6

# Nanda et al. 2023: three seeds to the end of clean-up, with the progress measures
sweep nanda sweep=nanda_2023 experiment=nanda 'seed=range(0,3)' train.steps=14000 eval.every=100

# Liu et al. 2023: the setting of the authors' code
kept=(model.init_scale=0.8 optim.norm_clamp=1.0 optim.weight_decay=0)
sweep omnigrok sweep=omnigrok_2023 experiment=nanda 'seed=range(0,4)' "${kept[@]}" train.steps=14000 \
  train.stop_horizon=100 eval.every=50
