#!/bin/sh
# Opens the inspector's page of each mixer of docs/mixers.md in a headless Chromium: steps by keyboard and click,
# compares the numbers on the page with the JSON and safetensors beside it, and takes screenshots, wide and narrow,
# light and dark.
#
#   scripts/browser_test.sh [OUT [PAGE…]]   pages and screenshots go to OUT [default: target/browser_test]; PAGE: some of
#                                           those below, as lstm [default: all]
#
# Needs Node and Chromium (CHROMIUM names another than /usr/bin/chromium); fetches playwright-core from npm once.
# TAPEZOO=FILE and RECALL=FILE take programs that are built already, the second of examples/recall.rs.
set -eu
cd "$(dirname "$0")/.."
out=${1:-target/browser_test}
[ $# -eq 0 ] || shift
mkdir -p "$out"
if [ ! -d "$out/node_modules/playwright-core" ]; then
  npm install --prefix "$out" --no-audit --no-fund --silent playwright-core@1
fi
tapezoo=${TAPEZOO:-target/release/tapezoo}
[ -n "${TAPEZOO-}" ] || cargo build --release --bin tapezoo
pages=$*
# Whether a page is to be made.
asked() { case " ${pages:-$1} " in *" $1 "*) ;; *) false ;; esac; }
page() {
  name=$1
  shift
  ! asked "$name" || "$tapezoo" inspect --out "$out/$name.html" --json "$@" > /dev/null
}

page lstm --model lstm:lr=1e-2 --len 24 --steps 800
page quasi_lstm --model quasi_lstm --len 24
page lru --model lru --len 24
page linear_transformer --model linear_transformer --task mqar --steps 1000
page gpt --model gpt --task mqar --steps 1500
page delta_net --model delta_net:eigenvalues=-1..1 --len 24 --graph
page mamba --model mamba:eigenvalues=-1..1 --len 24
page gated_delta_net --model gated_delta_net:eigenvalues=-1..1 --len 24
page delta_product --model delta_product:eigenvalues=-1..1 --task s3 --steps 5000
page slstm --model slstm --len 24
page mlstm --model mlstm --len 24
page compare --model delta_net --compare delta_net:eigenvalues=-1..1 --len 24
page long --model mamba --steps 0 --len 256
# Its first block has no state.
page transnormer --model transnormer --steps 0 --len 12
# A mixer that the program does not know: its page has no equations, and each quantity its own sizes.
recall=${RECALL:-target/release/examples/recall}
if asked added; then
  [ -n "${RECALL-}" ] || cargo build --release --example recall
  "$recall" inspect --out "$out/added.html" --json --model scalar --len 24 > /dev/null
fi

cp scripts/browser_test.mjs "$out/browser_test.mjs"
node "$out/browser_test.mjs" "$out" "$@"
