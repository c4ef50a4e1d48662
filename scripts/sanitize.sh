#!/usr/bin/env bash
# All fixtures through `verify` under AddressSanitizer and under valgrind, with plain, AVX2 and AVX-512 kernels each.
# Needs valgrind for its part, and says so where it is missing. Takes some minutes; leaves a build in target/sanitize.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(rustc -vV | sed -n 's/^host: //p')
fixtures=(tests/fixtures/*.safetensors tests/fixtures/published/*.safetensors tests/fixtures/mixers/*.safetensors)
failed=0

# The levels that this processor has; valgrind's has no AVX-512.
has() { grep -qw "$1" /proc/cpuinfo; }
levels=(plain)
has avx2 && has fma && levels+=(avx2)
has avx512_vbmi2 && has avx512vl && levels+=(avx512)

check() { # NAME LEVEL COMMAND…
  local name=$1 level=$2 dtype; shift 2
  for dtype in f64 f32; do
    if TAPEZOO_SIMD=$level "$@" --quiet --dtype "$dtype" "${fixtures[@]}" >target/sanitize/log 2>&1; then
      echo "ok      $name, $level, $dtype"
    else
      echo "FAILED  $name, $level, $dtype"; tail -40 target/sanitize/log; failed=1
    fi
  done
}

mkdir -p target/sanitize
# With --target, build scripts and macros are compiled without it.
RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address CARGO_PROFILE_DEV_OPT_LEVEL=1 CARGO_PROFILE_DEV_DEBUG=line-tables-only \
  cargo build --target "$target" --target-dir target/sanitize --bin verify
for level in "${levels[@]}"; do
  check AddressSanitizer "$level" "target/sanitize/$target/debug/verify"
done

if command -v valgrind >/dev/null; then
  cargo build --bin verify
  for level in "${levels[@]}"; do
    if [ "$level" = avx512 ]; then
      echo "skipped valgrind, avx512: it knows no such instructions"
    else
      check valgrind "$level" valgrind --quiet --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite \
        target/debug/verify
    fi
  done
else
  echo "skipped valgrind: it is not installed"
fi
exit $failed
