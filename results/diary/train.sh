#!/usr/bin/env bash
# Trains the evidence of results/diary, in the order of its page. Give it again and it goes on where it was.
#   results/diary/train.sh STORE                     everything: the census has seeds 0 to 999
#   results/diary/train.sh STORE FIRST LAST          only stretches of 50 seeds from FIRST up to LAST, with branching
# PLAN=1 results/diary/train.sh STORE ... plans and trains nothing; what needs runs that are not there says so.
set -euo pipefail
store=${1:?usage: results/diary/train.sh STORE [FIRST] [LAST]} first=${2:-0} last=${3:-1000}
how=(eval.every=250 dry_run="${PLAN:+true}")
[ -n "${PLAN:-}" ] || how=(eval.every=250)
grok() { # of the checkout that this script stands in, not what is installed; a plan goes on after an error
  local status=0
  python -m grok "$@" || status=$?
  [ -n "${PLAN:-}" ] || return "$status"
}

# 2, first because it is short: a parent that another census found fast (seed 100012, the fastest of 40 in
# results/seed-studies/long-census). Its streams are typed one by one, so it is no random seed of this census.
read -r split init order < <(python -c 'from grok.streams import derive_seed
print(*(derive_seed(100012, stream) for stream in ("split", "init", "order")))')
grok sweep seed=0 "seeds.split=$split" "seeds.init=$init" "seeds.order=$order" "${how[@]}" store.path="$store"
parent=$(python - "$store" "$split" "$init" "$order" <<'PYTHON'
import sys
from pathlib import Path
from grok.store import open_store
if not Path(sys.argv[1], "store.json").exists():  # a plan makes no store
    sys.exit()
runs = open_store(sys.argv[1]).runs()
for stream, seed in zip(("split", "init", "order"), sys.argv[2:]):
    runs = runs[runs[f"seed_{stream}"] == int(seed)]
runs = runs[(runs["config.perturb.ulps"] == 0) & (runs["layers"] == "{}") & (runs["config.train.steps"] == 3000)]
print(*runs[runs["config.optim.weight_decay"] == 0.1]["run_id"].head(1))
PYTHON
)
[ -n "$parent" ] || { echo "The other stages need this run, which is not there yet." && exit; }
grok branch --store "$store" --parents "$parent" --redraw split,init,order --times 8 "${how[@]}"
grok branch --store "$store" --parents "$parent" --redraw split+init,split+order,init+order --times 4 "${how[@]}"

supers() { # the super runs among random seeds and the named parent's own children, with commas; not among theirs:
  # some of these are super, too, and so on without an end
  python - "$store" "$parent" <<'PYTHON'
import sys
from analysis.observations import Observations, is_random_seed
from analysis.studies.branching import pairs
seen = Observations.read(sys.argv[1])
related = pairs(seen)
runs = seen.all_runs.set_index("run_id")
runs = runs[(runs["config.perturb.ulps"] == 0) & (runs["replicate"] == 0) & (runs["layers"] == "{}")]
runs = runs[(runs["config.optim.weight_decay"] == 0.1) & (runs["config.train.steps"] == 3000)]
runs = runs[runs["config.precision"].eq("float32") & runs["config.numerics.path"].eq("auto")]  # no repeats
runs = runs[runs["val_acc"].gt(0.98)]
own = runs.index.isin(related["child"][related["parent"] == sys.argv[2]])
print(*sorted(runs.index[is_random_seed(runs) | own]), sep=",")
PYTHON
}
super_again() { # 3: is it the seed? Four ulps, the other product path, float64. 2 again: the super runs as parents
  local found
  found=$(supers)
  [ -z "$found" ] || {
    grok repeat --store "$store" --seeds "$found" --controls "$1" --times 4 --kinds ulp,path,float64 "${how[@]}"
    grok branch --store "$store" --parents "$found" --redraw split,init,order --times 4 "${how[@]}"
  }
}
super_again 0

# 1 and 2: the census, and branching from the best and a random seed of each stretch up to seed 749, in turns: these are
# more than 400 runs in which exactly one stream was redrawn
for ((seed = first; seed < last; seed += 50)); do
  range="$seed:$((seed + 50))"
  grok sweep "seed=range(${range/:/,})" "${how[@]}" store.path="$store"
  ((seed < 750)) || continue
  parents=(--store "$store" --seeds "$range" --best 1 --random 1 --at 1500)
  grok branch "${parents[@]}" --redraw split,init,order --times 4 "${how[@]}"
  grok branch "${parents[@]}" --redraw split+init,split+order,init+order --times 2 "${how[@]}"
done

# The stages below choose among the whole census: with a part of it they would choose others, and train these, too.
[ "$first-$last" = 0-1000 ] || exit 0

# 3: every super run, those of the census too, beside two normal seeds
super_again 2

# 6: weight decay. Eight seeds each, and every super run without it. The long runs are the last and go one by one.
long=(train.stop_when_generalised=true checkpoint.keep=true "${how[@]}" store.path="$store")
found=$(supers)
[ -z "$found" ] ||
  grok repeat --store "$store" --seeds "$found" --controls 2 --kinds optim.weight_decay=0.0 --times 1 "${how[@]}"
grok sweep optim.weight_decay=0.01,0.1,1.0 'seed=range(0,8)' train.steps=20000 "${long[@]}"
grok sweep optim.weight_decay=0.0 'seed=range(0,8)' train.steps=100000 lanes=1 "${long[@]}"

# 4: layers. Two of the best seeds and two random ones; embedding, second block and head against the rest, four donors
# each. Then every combination of five parts, for the best one and a random one. Whole blocks, because attention and MLP
# apart would be four times as many runs.
recipients=$(python - "$store" <<'PYTHON'
import sys
from grok.store import open_store
from grok.streams import Stream
runs = open_store(sys.argv[1]).runs()
plain = (runs["config.perturb.ulps"] == 0) & (runs["replicate"] == 0) & (runs["layers"] == "{}")
plain &= (runs["config.optim.weight_decay"] == 0.1) & (runs["config.train.steps"] == 3000)
plain &= runs["config.seeds.split"].isna() & runs["config.seeds.init"].isna() & runs["config.seeds.order"].isna()
plain &= runs["config.precision"].eq("float32") & runs["config.numerics.path"].eq("auto")  # no repeats of super seeds
seeds = runs[plain & runs["seed"].between(0, 999)].sort_values("val_loss")["seed"].tolist()
others = sorted(seeds[2:])
drawn = Stream("sweep", 0).at("diary", "layers").permutation(len(others))[:2]
print(*seeds[:2], *(others[i] for i in drawn))
PYTHON
)
halves='kept=token_embedding,blocks.1,head;rest=position_embedding,blocks.0'
for recipient in $recipients; do
  for donor in 900001 900002 900003 900004; do
    grok layers --recipient "$recipient" --donor "$donor" --factors "$halves" --replicates 2 "${how[@]}" store.path="$store"
  done
done
read -r best _ other _ <<< "$recipients"
parts='embedding=token_embedding;positions=position_embedding;first block=blocks.0;second block=blocks.1;head=head'
for recipient in $best $other; do
  grok layers --recipient "$recipient" --donor 900005 --factors "$parts" --replicates 2 "${how[@]}" store.path="$store"
done

# 5: order seeds inside splits: 3 splits x 4 inits x 4 orders, each twice
grok sweep 'seeds.split=range(0,3)' 'seeds.init=range(0,4)' 'seeds.order=range(0,4)' 'seeds.perturb=range(0,2)' \
  perturb.ulps=1 "${how[@]}" store.path="$store"
