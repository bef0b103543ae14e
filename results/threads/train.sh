#!/usr/bin/env bash
# Trains the runs of results/threads on two cores in about an hour. Give it again and it goes on.
#   results/threads/train.sh [STORE]     STORE: results/threads/store
# PLAN=1 results/threads/train.sh plans and trains nothing.
set -euo pipefail
store=${1:-results/threads/store}
how=(executor=inline store.path="$store")
if [ -n "${PLAN:-}" ]; then how+=(dry_run=true); else how+=(require_clean=true); fi

# danielmamay/grokking #1: half of the examples for training, and a quarter
python -m grok sweep experiment=mamay 'seed=range(0,6)' task.train_fraction=0.5,0.25 train.steps=10000 \
  train.stop_horizon=100 eval.schedule=every eval.every=50 "${how[@]}"

# LucasPrietoAl/grokking-at-the-edge-of-numerical-stability #7: orthogonal gradients with each loss
python -m grok sweep experiment=nanda 'seed=range(0,4)' train.loss=softmax,stablemax optim.orthogonal_gradient=true \
  optim.weight_decay=0 train.steps=2000 train.stop_horizon=100 eval.every=20 "${how[@]}"
