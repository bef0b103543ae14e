#!/usr/bin/env bash
# Trains the runs of results/weights with the weights of more steps than are committed: 90 MB in ten minutes.
#   results/weights/train.sh STORE      STORE: a new folder
# PLAN=1 results/weights/train.sh STORE plans and trains nothing.
set -euo pipefail
how=(save=init,final executor=inline store.path="${1:?the folder of a store}")
if [ -n "${PLAN:-}" ]; then how+=(dry_run=true); else how+=(require_clean=true); fi
python -m grok sweep seed=0,408 eval.every=250 'checkpoint.keep_steps=[250,500,1000,1500,2000,2500]' "${how[@]}"
python -m grok sweep experiment=nanda seed=2 train.steps=14000 'checkpoint.keep_steps=[1000,3000,6000,9000,12000]' "${how[@]}"
