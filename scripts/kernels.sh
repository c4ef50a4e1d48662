#!/usr/bin/env bash
# The cost of each kernel in lines and its gain in time, as tables in docs/kernels.md; and the places of unsafe code.
#
#   scripts/kernels.sh [--cells T32,T256,d64,d128] [--models lstm,…] [--rounds 6] [--write | --report]
#   scripts/kernels.sh --forms [--models lstm,…] [--rounds 6] [--write]
#
# For each cell of the race (scripts/race.py) and each further mixer at the wide sizes: steps with all kernels and steps
# without the one, in turns, in one process on one core. All cells take about 20 minutes; leave the machine alone meanwhile.
# --forms does the same in the other forms and in the published models, for the kernels that by the page run in no cell or buy
# under 10 % in each.
# The numbers go to target/kernels.json, cell by cell, and --write puts all that it holds into the page; --report does that
# and times nothing.
set -euo pipefail
case ${1-} in -h | --help)
  sed -n '2,$s/^# \{0,1\}//p' "$0" | sed '/^set /,$d'
  exit
  ;;
esac
cd "$(dirname "$0")/.."
cargo build --release --quiet --example step_time
PYTHONDONTWRITEBYTECODE=1 exec python3 scripts/kernels.py "$@"
