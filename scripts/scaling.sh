#!/usr/bin/env bash
# Time and memory per token up to 65,536 tokens, in training and streamed: figures into docs/figures/, tables into
# docs/performance.md between their marks.
#
#   scripts/scaling.sh [LONGEST]      LONGEST: 65536 if absent; some minutes and up to 6 GB
set -euo pipefail
case ${1-} in -h | --help)
  sed -n '2,$s/^# \{0,1\}//p' "$0"
  exit
  ;;
esac
cd "$(dirname "$0")/.."

cargo build --release --quiet --example scaling
table=$(target/release/examples/scaling docs/figures "$@")
table="$table" python3 - <<'PYTHON'
import os
import sys
sys.dont_write_bytecode = True
sys.path.insert(0, "scripts")
from marks import insert
insert("docs/performance.md", "scaling.sh", os.environ["table"] + "\n")
PYTHON
