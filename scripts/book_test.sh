#!/bin/sh
# Opens every page of `tapezoo book` in a headless Chromium, follows every link, trains models in their pages against
# the program's numbers, and takes screenshots, wide and narrow, light and dark.
#
#   scripts/book_test.sh [OUT]           the site and screenshots go to OUT [default: target/book_test]
#
# Needs Node and Chromium (CHROMIUM names another than /usr/bin/chromium); fetches playwright-core from npm once. TAPEZOO
# names another program than target/release/tapezoo. Where scripts/web.sh has not run, the site trains no models.
set -eu
cd "$(dirname "$0")/.."
out=${1:-target/book_test}
mkdir -p "$out"
if [ ! -d "$out/node_modules/playwright-core" ]; then
  npm install --prefix "$out" --no-audit --no-fund --silent playwright-core@1
fi
tapezoo=${TAPEZOO:-target/release/tapezoo}
[ -n "${TAPEZOO-}" ] || cargo build --release --bin tapezoo
"$tapezoo" book --out "$out/site"
printf 'log_every = 1\nmicro_batches = 1\n' > "$out/every.toml"
rm -rf "$out/runs" # of another program, perhaps
"$tapezoo" parity --models lstm,delta_net --kernels plain --steps 1000 --seeds 1 --batch 8 \
  --train-len 16 --eval-lens 16 --config "$out/every.toml" --out "$out/runs"
cp scripts/book_test.mjs "$out/book_test.mjs"
node "$out/book_test.mjs" "$out" "$out/site" "$out/runs"
