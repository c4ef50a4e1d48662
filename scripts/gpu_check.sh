#!/usr/bin/env bash
# All checks and timings of the CUDA backend, on a machine that has a GPU but no Rust, in under eight minutes, as one
# table.
#
#   scripts/gpu_check.sh pack DIR [ARCH]      build, and put all that is needed into DIR.tar.xz (here, with Rust); kernels are
#                                             compiled for ARCH [sm_90] if NVRTC is here, FLA comes along if pip finds it
#   DIR/gpu_check.sh run [OPTION..]           run it (there): tests, fixtures, compute-sanitizer, timings, PyTorch
#     --device DEVICE    cuda, cuda:1, or emulated to try this script [cuda]
#     --tiny             the fewest cases and the smallest sizes: does everything run?
#     --python PROGRAM   one that has PyTorch [python3]
#     --only WORD        one part: tests, verify, sanitizer, first, launches, cores, steps, torch or fla
#
# DIR needs a driver, NVRTC and cuBLAS beside it, and for the last two parts PyTorch. A step that fails or outlasts its time gets a FAIL row,
# the others go on, and the status is 1 at the end. The table is also in DIR/log/table.txt, beside what every step
# printed; where $OUT is set, both go there too.
set -uo pipefail

usage() { sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 2; }
die() { echo "gpu_check.sh: $1" >&2; exit 2; }

pack() {
  set -e
  [ $# = 1 ] || [ $# = 2 ] || usage
  mkdir -p "$1"
  local dir root size tests=() file test
  dir=$(cd "$1" && pwd)
  # Only what an earlier `pack` made is deleted.
  [ -z "$(ls -A "$dir")" ] || { [ -e "$dir/gpu_check.sh" ] && [ -d "$dir/bin" ]; } ||
    die "$dir has other files; expected a new or empty directory, or one that pack made"
  root=$(cd "$(dirname "$0")/.." && pwd)
  cd "$root"
  for file in tests/cuda.rs tests/cuda_*.rs; do
    test=$(basename "$file" .rs)
    # These two start processes of their own, on the emulator.
    case $test in cuda_checked | cuda_errors) ;; *) tests+=(--test "$test") ;; esac
  done
  rm -rf "$dir/bin" "$dir/tests" "$dir/cubins" "$dir/site"
  mkdir -p "$dir/bin" "$dir/tests" "$dir/cubins"
  cargo build --release --bin verify --example timing --example launches
  cp target/release/verify target/release/examples/{timing,launches} "$dir/bin"
  cargo test --release --no-run "${tests[@]}" 2>&1 | tee >(cat >&2) |
    sed -n 's/.*Executable tests\/\(.*\)\.rs (\(.*\))$/\1 \2/p' |
    while read -r test file; do cp "$file" "$dir/bin/$test"; done
  strip "$dir"/bin/*
  # A GPU is lent for minutes, and compiling takes some of them.
  TAPEZOO_CUBINS=$dir/cubins TAPEZOO_ARCH=${2-sm_90} \
    cargo test --release --test nvrtc -- --ignored every_kernel_into_a_cache || echo "kernels are compiled there"
  python3 -m pip install --quiet --no-deps --no-compile --target "$dir/site" fla-core==0.6.0 || echo "no FLA"
  cp -r tests/fixtures "$dir/tests"
  cp scripts/gpu_check.sh scripts/gpu_torch.py "$dir"
  rm -rf "$dir/log"
  tar -cf - -C "$(dirname "$dir")" "$(basename "$dir")" | xz -T0 -4 >"$dir.tar.xz"
  size=$(du -m "$dir.tar.xz" | cut -f1)
  echo "$dir.tar.xz: $size MiB; there: tar -xf $(basename "$dir").tar.xz && $(basename "$dir")/gpu_check.sh run"
  [ "$size" -lt 50 ] || die "more than 50 MiB"
}

# ---- rows: a status, what was done, what it took, what came of it

slow=1 deadline=470 # seconds; emulated, ten times as much
left() { echo $((deadline - SECONDS)); }
row() { printf '%-5s %-36s %11s  %s\n' "$@"; }
# The line of a log that says most about a failure.
reason() {
  sed -n '/ panicked at /{n;p;q}' "$1" | grep . || grep -m1 -iE '^error|: error|no such|not found' "$1" || tail -1 "$1"
}

# attempt NAME LIMIT COMMAND..: run it into its log for so many seconds at most; prints nothing but a failure's row.
attempt() {
  local name=$1 limit=$(($2 * slow)) status log="$dir/log/${1//[ \/]/_}"
  shift 2
  [ "$limit" -le "$(left)" ] || limit=$(left)
  if [ "$limit" -lt 5 ]; then row FAIL "$name" - "not run: out of time"; return 1; fi
  timeout -k 5 "$limit" "$@" >"$log" 2>&1
  status=$?
  case $status in
    0) return 0 ;;
    124 | 137) row FAIL "$name" "$limit s" "stopped: it took too long" ;;
    *) [ "$status" -lt 128 ] || echo "ended by signal $((status - 128))" >>"$log"
      row FAIL "$name" - "exit $status: $(reason "$log" | cut -c1-160)" ;;
  esac
  return $status
}

# check NAME LIMIT COMMAND..: its row has the summary that it printed.
check() {
  local began=$SECONDS log="$dir/log/${1//[ \/]/_}" result
  attempt "$@" || return
  result=$(grep -E '^test result: |files agree|ERROR SUMMARY' "$log" | tail -1 |
    sed 's/^test result: ok\. //; s/; 0 failed.*//; s/=* *ERROR SUMMARY: //')
  row ok "$1" "$((SECONDS - began)) s" "$result"
}

# times NAME LIMIT COMMAND..: what it prints are rows; lines that begin with # say what could not be timed.
times() {
  local log="$dir/log/${1//[ \/]/_}" failure status
  failure=$(attempt "$@")
  status=$?
  sed -n 's/^# /note  /p; /^[a-z].* ms  /s/^/ok    /p' "$log" 2>/dev/null
  case $status in
    0) ;;
    3) row "$([ "$device" = emulated ] && echo skip || echo FAIL)" "$1" - "$(tail -1 "$log")" ;;
    *) echo "$failure" ;;
  esac
  return $status
}

# Checks run side by side, a timing never beside anything.
warming=() fla=("fla linear_attention" "fla linear_attention, a gate a head" "fla linear_attention, a gate a channel"
  "fla delta_rule" "fla gated_delta_rule" "fla kda")
running=() checking=() most=$((($(nproc) + 1) / 2))
start() {
  while [ "$(jobs -rp | wc -l)" -ge $((most + ${#warming[@]})) ]; do wait -n; done
  running+=("$dir/log/${#running[@]}.row")
  check "$@" >"${running[-1]}" &
  checking+=($!)
}
finish() {
  local file
  wait "${checking[@]}"
  for file in ${running[@]+"${running[@]}"}; do cat "$file" && rm "$file"; done
}
wanted() { [ -z "$only" ] || [[ " $* " == *"$only"* ]]; }

checks() {
  local binary cases=()
  for binary in "$dir"/bin/cuda*; do
    wanted tests && start "tests/$(basename "$binary")" 240 "$binary" --test-threads 2
  done
  cases=("$dir"/tests/fixtures/{,published/,mixers/}*.safetensors)
  wanted verify && start "verify f32" 120 "$dir/bin/verify" --quiet --device "$device" --dtype f32 "${cases[@]}"
  if wanted sanitizer && [ "$device" != emulated ]; then
    if command -v compute-sanitizer >/dev/null; then
      TAPEZOO_CASES=1 start "compute-sanitizer" 200 compute-sanitizer --error-exitcode 9 "$dir/bin/cuda" --exact \
        every_op_follows_the_cpu_in_single
    else
      row skip compute-sanitizer - "not found"
    fi
  fi
  finish
}

# The first run, which waits until its kernels are compiled.
first() {
  wanted first && [ "$device" != emulated ] || return 0
  local began=$(date +%s%N) again
  XDG_CACHE_HOME=$dir/log/empty attempt "first run" 60 "$dir/bin/timing" steps --device "$device" --tiny || return
  again=$(date +%s%N)
  XDG_CACHE_HOME=$dir/log/empty attempt "second run" 60 "$dir/bin/timing" steps --device "$device" --tiny || return
  row ok "first run of all seven models" "$(((again - began) / 1000000)) ms" \
    "$((($(date +%s%N) - again) / 1000000)) ms when its kernels are compiled"
}

# flash-linear-attention's autotuner compiles for minutes: beside the checks, which need the processors less.
warm() {
  [ -d "$dir/site" ] && [ "$device" != emulated ] && wanted fla || return 0
  export PYTHONPATH=$dir/site TRITON_CACHE_DIR=$dir/log/triton
  local name
  for name in "${fla[@]}"; do
    timeout 200 "$python" "$dir/gpu_torch.py" cores "$name" --device "$device" $tiny --seconds 0 >"$dir/log/warm_${name// /_}" 2>&1 &
    warming+=($!)
  done
}

timings() {
  local name names
  if wanted launches && [ "$device" != emulated ]; then
    rm -f "$dir/log/launches.txt"
    if attempt launches 120 "$dir/bin/launches" --measure "$dir/log/launches.txt"; then
      row ok launches - "$(grep -vc '^#' "$dir/log/launches.txt") medians in log/launches.txt"
    fi
  fi
  if wanted cores; then
    names=$("$dir/bin/timing" cores --list) || row FAIL cores - "no names"
    for name in $names; do
      # A copy and a matrix product are timed for every core: here are their rows.
      # If only its graph fails, it is timed without one.
      times "cores $name" 60 "$dir/bin/timing" cores "$name" --device "$device" $tiny ||
        times "cores $name without graphs" 60 "$dir/bin/timing" cores "$name" --device "$device" $tiny --no-graphs
    done
  fi
  if wanted steps; then
    names=$("$dir/bin/timing" steps --list) || row FAIL steps - "no names"
    for name in $names; do
      times "steps $name" 40 "$dir/bin/timing" steps "$name" --device "$device" $tiny
    done
  fi
  if wanted torch; then
    for name in "cores attention" "cores lstm" steps; do
      times "torch $name" 90 "$python" "$dir/gpu_torch.py" $name --device "${device/emulated/cuda}" $tiny
      # Without a GPU to time, this only tests whether the code runs.
      [ "$device" != emulated ] ||
        times "torch $name on the CPU" 90 "$python" "$dir/gpu_torch.py" $name --device cpu --tiny
    done
  fi
  if wanted fla && [ -d "$dir/site" ] && [ "$device" != emulated ]; then
    for name in "${fla[@]}"; do times "$name" 60 "$python" "$dir/gpu_torch.py" cores "$name" --device "$device" $tiny; done
  fi
}

all() {
  echo "$(date -u +%F) device $device, $(nvidia-smi --query-gpu=name,driver_version,clocks.sm --format=csv,noheader \
    2>/dev/null || echo 'no nvidia-smi'), $(nproc) processors"
  row "" what "time" "result"
  warm
  checks
  # Timings have the machine to themselves.
  [ ${#warming[@]} = 0 ] || wait "${warming[@]}" || true
  first
  timings
  true
}

run() {
  device=cuda tiny='' only='' python=python3 dir=$(cd "$(dirname "$0")" && pwd)
  while [ $# -gt 0 ]; do
    case $1 in
      --tiny) tiny=--tiny && shift && continue ;;
      --device | --python | --only) [ $# -ge 2 ] || die "$1 needs a value" ;;
      *) usage ;;
    esac
    declare -g "${1#--}=$2"
    shift 2
  done
  case $only in '' | tests | verify | sanitizer | first | launches | cores | steps | torch | fla) ;; *) usage ;; esac
  [ -x "$dir/bin/timing" ] || die "$dir has no bin/timing: run this where 'gpu_check.sh pack' put it"
  rm -rf "$dir/log" && mkdir -p "$dir/log"
  # Kernels are compiled once for all steps, and compiling them is tested too: nothing is left of an earlier run. The
  # emulator's take minutes, and stay.
  local cache="$dir/log/cache"
  mkdir -p "$cache/tapezoo" && cp -r "$dir/cubins" "$cache/tapezoo/kernels"
  if [ "$device" = emulated ]; then slow=10 deadline=4700; else export XDG_CACHE_HOME=$cache; fi
  export TAPEZOO_ROOT=$dir TAPEZOO_TEST_DEVICE=$device RUST_BACKTRACE=0
  [ -z "$tiny" ] || export TAPEZOO_CASES=1
  all | tee "$dir/log/table.txt"
  [ "${PIPESTATUS[0]}" = 0 ] || echo "FAIL  this script ended early" | tee -a "$dir/log/table.txt"
  local failed
  failed=$(grep -c '^FAIL' "$dir/log/table.txt")
  echo "$failed failed, $SECONDS s" | tee -a "$dir/log/table.txt"
  rm -rf "$cache" "$dir/log/triton" "$dir/log/empty"
  if [ -n "${OUT:-}" ]; then
    cp "$dir/log/table.txt" "$OUT/table.txt"
    [ ! -f "$dir/log/launches.txt" ] || cp "$dir/log/launches.txt" "$OUT/launches.txt"
    tar -czf "$OUT/log.tar.gz" -C "$dir" log
  fi
  [ "$failed" = 0 ]
}

case ${1:-} in
  pack) shift && pack "$@" ;;
  run) shift && run "$@" ;;
  *) usage ;;
esac
