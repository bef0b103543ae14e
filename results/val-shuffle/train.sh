#!/usr/bin/env bash
# Trains the 96 runs of results/val-shuffle, in three minutes of one core. Give it again and it goes on.
#   results/val-shuffle/train.sh [STORE]     STORE: results/val-shuffle/store
set -euo pipefail
python -m grok sweep experiment=toy sweep=bug store.path="${1:-results/val-shuffle/store}" require_clean=true
