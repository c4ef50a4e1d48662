#!/usr/bin/env bash
# All checks of the CUDA backend on a machine that has a GPU but no Rust, in under eight minutes, as one table.
#
#   scripts/gpu_check.sh pack DIR            build and put the binaries into DIR (here, with Rust)
#   scripts/gpu_check.sh run DIR [DEVICE]    run them (there); DEVICE: cuda, cuda:1, or emulated to try this script
#
# It needs the repository beside DIR (for tests/fixtures) and nothing else but a driver, NVRTC and cuBLAS. A row that
# fails says so and leaves its output in DIR/log; the status is then 1. compute-sanitizer is used where it is found.
set -uo pipefail
cd "$(dirname "$0")/.."

usage() { sed -n '2,9s/^# \?//p' "$0"; exit 2; }
[ $# -ge 2 ] || usage
command=$1 dir=$2 device=${3:-cuda}

pack() {
  set -e
  mkdir -p "$dir"
  local tests=() test file
  for file in tests/cuda.rs tests/cuda_*.rs; do
    test=$(basename "$file" .rs)
    # These start processes of their own, on the emulator.
    case $test in cuda_checked | cuda_errors) ;; *) tests+=(--test "$test") ;; esac
  done
  cargo build --release --bin parity --bin verify
  cp target/release/parity target/release/verify "$dir"
  cargo test --release --no-run "${tests[@]}" 2>&1 | tee /dev/stderr \
    | sed -n 's/.*Executable tests\/\(.*\)\.rs (\(.*\))$/\1 \2/p' | while read -r test file; do cp "$file" "$dir/$test"; done
  strip "$dir"/parity "$dir"/verify "$dir"/cuda*
  du -sh "$dir"
}

# ---- the table
start=$SECONDS deadline=470 failed=0
row() { printf '%-34s %-28s %6s s\n' "$1" "$2" "$3"; }
left() { echo $((deadline - (SECONDS - start))); }

# check NAME LIMIT COMMAND...: one row; the command's last line that matches $summary is its result.
check() {
  local name=$1 limit=$2 began=$SECONDS log status result
  shift 2
  log="$dir/log/${name// /_}"
  if [ "$(left)" -lt 5 ]; then row "$name" "not run: out of time" -; return; fi
  [ "$limit" -le "$(left)" ] || limit=$(left)
  timeout "$limit" "$@" >"$log" 2>&1
  status=$?
  result=$(grep -E '^test result: |verified|passed|ERROR SUMMARY' "$log" | tail -1 | sed 's/^test result: \(ok\|FAILED\)\. //; s/; 0 failed.*//; s/; [0-9]* ignored.*//; s/=* *ERROR SUMMARY: //')
  case $status in
    0) result=${result:-ok} ;;
    124) result="TIMEOUT after $limit s" failed=1 ;;
    *) result="FAILED ($status) $result" failed=1 ;;
  esac
  row "$name" "$result" $((SECONDS - began))
}

# Steps a second of a model on a device, without the time of its first steps, in which kernels are compiled and loaded.
rate() {
  local model=$1 config=$2 on=$3 dtype=$4 limit=60 n t
  local few=10 many=$steps times=()
  [ "$limit" -le "$(left)" ] || limit=$(left)
  [ "$limit" -ge 2 ] || { echo "-"; return; }
  for n in $few $many; do
    t=$(timeout "$limit" "$dir/parity" --config "$config" --models "$model" --device "$on" --dtype "$dtype" --steps "$n" \
      --seeds 1 --threads 1 --json 2>"$dir/log/rate_${model}_${on}_$dtype" | awk -F'[ ,]+' '/"steps":/ {s = $3} /"steps_per_s":/ {print s / $3}')
    [ -n "$t" ] || { tail -1 "$dir/log/rate_${model}_${on}_$dtype" | grep -q "dtype\|--dtype\|kernel" && echo "none" || echo "-"; return; }
    times+=("$t")
  done
  awk -v a="${times[0]}" -v b="${times[1]}" -v n=$((many - few)) 'BEGIN { if (b > a) printf "%.0f\n", n / (b - a); else print "-" }'
}

sizes() { # NAME: a configuration for parity
  local common="eval_lens = [32]\neval_batches = 1\n"
  local per="[per_model.lru.model]\nmlp = 0\n[per_model.mamba.model]\nmlp = 0\n"
  case $1 in
    published) printf 'preset = "published"\n%b' "$common" ;;
    d64) printf 'preset = "published"\ntrain_len = 256\n%b[model]\nwidth = 64\nheads = 4\nhead_dim = 16\nmlp = 256\nstate = 16\nconv = 4\ndt_rank = 0\n%b' \
      "$common" "${per/lru.model]/lru.model]\\nwidth = 64\\nstate = 64}" ;;
    d128) printf 'preset = "published"\ntrain_len = 256\n%b[model]\nwidth = 128\nheads = 4\nhead_dim = 32\nmlp = 512\nstate = 16\nconv = 4\ndt_rank = 0\n%b' \
      "$common" "${per/lru.model]/lru.model]\\nwidth = 128\\nstate = 128}" ;;
  esac
}

run() {
  mkdir -p "$dir/log"
  export TAPEZOO_TEST_DEVICE=$device RUST_BACKTRACE=0
  local steps=${STEPS:-210} models=${MODELS:-lstm quasi_lstm lru linear_transformer gpt delta_net mamba}
  echo "device $device: $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null || echo 'no nvidia-smi')"
  local binary
  for binary in "$dir"/cuda*; do check "tests/$(basename "$binary")" 150 "$binary" --test-threads 1; done
  check "verify f32" 100 "$dir/verify" --quiet --device "$device" --dtype f32 tests/fixtures/{,published/}*.safetensors
  check "verify f64" 100 "$dir/verify" --quiet --device "$device" tests/fixtures/{,published/}*.safetensors
  if [ "$device" != emulated ] && command -v compute-sanitizer >/dev/null; then
    TAPEZOO_CASES=1 check "compute-sanitizer" 120 compute-sanitizer --error-exitcode 9 "$dir/cuda" every_op_follows_the_cpu_in_single
  fi
  printf '\n%-34s %10s %10s %10s %8s\n' "training steps a second" "cpu f32" "$device f32" "bf16" "f32/cpu"
  local size model cpu f32 bf16
  for size in ${SIZES:-published d64 d128}; do
    sizes "$size" >"$dir/log/$size.toml"
    for model in $models; do
      cpu=$(rate "$model" "$dir/log/$size.toml" cpu f32)
      f32=$(rate "$model" "$dir/log/$size.toml" "$device" f32)
      bf16=$(rate "$model" "$dir/log/$size.toml" "$device" bf16)
      printf '%-34s %10s %10s %10s %8s\n' "$size $model" "$cpu" "$f32" "$bf16" \
        "$(awk -v a="$f32" -v b="$cpu" 'BEGIN { if (a > 0 && b > 0) printf "%.2f", a / b; else print "-" }')"
    done
  done
  printf '\n%s in %s s\n' "$([ $failed = 0 ] && echo "all checks passed" || echo "SOME CHECKS FAILED")" $((SECONDS - start))
  return $failed
}

case $command in pack) pack ;; run) run ;; *) usage ;; esac
