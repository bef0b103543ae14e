#!/usr/bin/env bash
# Trains the evidence of results/diary, in the order of its page. Give it again and it goes on where it was.
#   results/diary/train.sh STORE                     everything: the census has seeds 0 to 1983
#   results/diary/train.sh STORE FIRST LAST          only stretches of 50 seeds from FIRST up to LAST, at most 950
# Most commands below have few runs, and a GPU trains hundreds at a time: there only the census is fast.
# PLAN=1 results/diary/train.sh STORE ... plans and trains nothing; what needs runs that are not there says so.
set -euo pipefail
store=${1:?usage: results/diary/train.sh STORE [FIRST] [LAST]} first=${2:-0} last=${3:-950}
((last <= 950)) || { echo "LAST is $last: expected at most 950, where branching ends" >&2 && exit 2; }
how=(eval.every=250 dry_run="${PLAN:+true}")
[ -n "${PLAN:-}" ] || how=(eval.every=250 require_clean=true)
grok() { # of the checkout that this script stands in, not what is installed; a plan goes on after an error
  local status=0
  python -m grok "$@" || status=$?
  [ -n "${PLAN:-}" ] || return "$status"
}
chosen() { PYTHONPATH="$PWD" python "$(dirname "$0")/chosen.py" "$1" "$store"; }

# 2, first because it is short: a parent that another census found fast (seed 100012; its store is not kept). Its
# streams are typed one by one, so it is no random seed of this census.
read -r split init order < <(python -c 'from grok.streams import derive_seed
print(*(derive_seed(100012, stream) for stream in ("split", "init", "order")))')
grok sweep seed=0 "seeds.split=$split" "seeds.init=$init" "seeds.order=$order" "${how[@]}" store.path="$store"
parent=$(chosen parent)
[ -n "$parent" ] || { echo "The other stages need this run, which is not there yet." && exit; }
grok branch --store "$store" --parents "$parent" --redraw split,init,order --times 8 "${how[@]}"
grok branch --store "$store" --parents "$parent" --redraw split+init,split+order,init+order --times 4 "${how[@]}"

super_again() { # 3: is it the seed? Four ulps, the other product path, float64. 2 again: the super runs as parents
  local found
  found=$(chosen supers)
  [ -z "$found" ] || {
    grok repeat --store "$store" --seeds "$found" --controls "$1" --times 4 --kinds ulp,path,float64 "${how[@]}"
    grok branch --store "$store" --parents "$found" --redraw split,init,order --times 4 "${how[@]}"
  }
}
super_again 0

# 1 and 2: the census, and branching from the best and a random seed of each stretch of 50 up to seed 949, in turns:
# these are more than 400 runs in which exactly one stream was redrawn
for ((seed = first; seed < last; seed += 50)); do
  range="$seed:$((seed + 50))"
  grok sweep "seed=range(${range/:/,})" "${how[@]}" store.path="$store"
  parents=(--store "$store" --seeds "$range" --best 1 --random 1 --at 1500)
  grok branch "${parents[@]}" --redraw split,init,order --times 4 "${how[@]}"
  grok branch "${parents[@]}" --redraw split+init,split+order,init+order --times 2 "${how[@]}"
done

# The stages below choose among the whole census: with a part of it they would choose others, and train these, too.
[ $# = 1 ] || exit 0
grok sweep 'seed=range(950,1984)' "${how[@]}" store.path="$store"

# 3: every super run, those of the census too, beside two normal seeds
super_again 2

# 6: weight decay. Eight seeds each, and every super run without it. The long runs are the last and go one by one.
long=(train.stop_when_generalised=true checkpoint.keep=true "${how[@]}" store.path="$store")
found=$(chosen supers)
[ -z "$found" ] ||
  grok repeat --store "$store" --seeds "$found" --controls 2 --kinds optim.weight_decay=0.0 --times 1 "${how[@]}"
grok sweep optim.weight_decay=0.01,0.1,1.0 'seed=range(0,8)' train.steps=20000 "${long[@]}"
grok sweep optim.weight_decay=0.0 'seed=range(0,8)' train.steps=100000 lanes=1 "${long[@]}"

# 4: layers. The two best of seeds 0 to 999 and two random ones of these; embedding, second block and head against the rest, four donors
# each. Then every combination of five parts, for the best one and a random one. Whole blocks, because attention and MLP
# apart would be four times as many runs.
recipients=$(chosen recipients)
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
