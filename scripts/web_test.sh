#!/bin/sh
# The library in WebAssembly (scripts/web.sh) against the program: an LSTM and a DeltaNet learn parity for 1,000 steps
# with plain kernels in both, and every loss is compared. Then what the pages rely on: errors with a reason.
#
#   scripts/web_test.sh [OUT]            runs go to OUT [default: target/web_test]
#
# Needs Node 18 or later. TAPEZOO names another program than target/release/tapezoo.
set -eu
cd "$(dirname "$0")/.."
out=${1:-target/web_test}
mkdir -p "$out"
scripts/web.sh
tapezoo=${TAPEZOO:-target/release/tapezoo}
[ -n "${TAPEZOO-}" ] || cargo build --release --bin tapezoo
printf 'log_every = 1\nmicro_batches = 1\n' > "$out/every.toml"
rm -rf "$out/runs"
"$tapezoo" parity --models lstm,delta_net --kernels plain --steps 1000 --seeds 1 --batch 8 --train-len 16 \
  --eval-lens 16,32 --config "$out/every.toml" --out "$out/runs"
node scripts/web_test.mjs target/web/tapezoo.wasm "$out/runs"
