#!/usr/bin/env bash
# Time and memory per token up to 65,536 tokens, in training and streamed: figures into docs/figures/, tables into
# docs/performance.md between their marks.
#
#   scripts/scaling.sh [LONGEST]      LONGEST: 65536 if absent. A line of a figure ends when a step takes 20 s, or the
#                                     next may take 12 GB.
set -euo pipefail
case ${1-} in -h | --help)
  sed -n '2,$s/^# \{0,1\}//p' "$0"
  exit
  ;;
esac
cd "$(dirname "$0")/.."

cargo build --release --quiet --example scaling
table=$(target/release/examples/scaling docs/figures "$@")
figures="![A training step, per token](figures/scaling_time.svg)
![Memory of a training step, per token](figures/scaling_memory.svg)
![What is carried from token to token](figures/scaling_streaming.svg)"
python3 -B scripts/marks.py docs/performance.md scaling.sh <<<"$figures

$table"
