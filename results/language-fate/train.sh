#!/usr/bin/env bash
# Trains the runs of results/language-fate, about an hour of one core. Give it again and it goes on.
#   results/language-fate/train.sh DATA [STORE]    STORE: results/language-fate/store
# DATA: grok prepare tinystories --input TinyStoriesV2-sample.txt --tokenizer bpe --vocab-size 2048 --out DATA
set -euo pipefail
data=$1 store=${2:-results/language-fate/store}
how=(
  mode=gpt experiment=gpt/tinystories_sample data.path="$data" store.path="$store" require_clean=true workers=1
  model.layers=2 model.d_model=64 model.heads=2 model.context=64 train.batch_size=8 train.steps=1000 train.threads=1
  train.early_stop=0 eval.every=250 eval.windows=null eval.sample_tokens=0 save=none log.quiet=true
)
# five seeds as they are, with their checkpoints; then each with six other orders of the data, from the start and later
python -m grok sweep "${how[@]}" 'seed=range(0,5)' checkpoint.keep_every=100
python -m grok sweep "${how[@]}" 'seed=range(0,5)' 'seeds.order=range(1,7)'
for step in 300 600 900 100; do
  for seed in 0 1 2 3 4; do
    run=$(python -m grok list "$store" seed=$seed checkpoint.keep_every=100 --csv | tail -1 | cut -d, -f1)
    python -m grok sweep "${how[@]}" seed=$seed resume.run="$run" resume.step=$step \
      'resume.changes=[seeds.order]' 'seeds.order=range(1,7)'
  done
done
