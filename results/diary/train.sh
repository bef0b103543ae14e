#!/usr/bin/env bash
# Trains the evidence of results/diary: census and branching in turns. Give it again and it goes on.
#   results/diary/train.sh STORE [FIRST] [LAST]      stretches of 50 seeds from FIRST up to LAST (0 and 1000)
set -euo pipefail
store=$1 first=${2:-0} last=${3:-1000}
for ((seed = first; seed < last; seed += 50)); do
  range="$seed:$((seed + 50))"
  python -m grok.run -m "seed=range(${range/:/,})" eval.every=250 store.path="$store"
  parents=(--store "$store" --seeds "$range" --best 1 --random 1 --at 1500)
  python -m sweeps.branch "${parents[@]}" --redraw split,init,order --times 4 eval.every=250
  python -m sweeps.branch "${parents[@]}" --redraw split+init,split+order,init+order --times 2 eval.every=250
done
