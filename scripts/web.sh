#!/bin/sh
# Builds the library for a browser: target/web/tapezoo.wasm, and the same compressed, which `tapezoo book` takes.
#
#   scripts/web.sh
#
# Needs the target: rustup target add wasm32-unknown-unknown
set -eu
cd "$(dirname "$0")/.."
CARGO=${CARGO:-cargo}
out=target/web
# Vectors of 128 bits, which browsers have had since 2021: up to a tenth sooner, to the same bits.
export RUSTFLAGS="${RUSTFLAGS:-} -C target-feature=+simd128"
$CARGO build -p web --lib --profile web --target wasm32-unknown-unknown --target-dir "$out"
cp "$out/wasm32-unknown-unknown/web/web.wasm" "$out/tapezoo.wasm.new"
gzip -9 -n < "$out/tapezoo.wasm.new" > "$out/tapezoo.wasm.gz.new"
mv "$out/tapezoo.wasm.new" "$out/tapezoo.wasm"
mv "$out/tapezoo.wasm.gz.new" "$out/tapezoo.wasm.gz"
echo "$out/tapezoo.wasm: $(wc -c < "$out/tapezoo.wasm") bytes, compressed $(wc -c < "$out/tapezoo.wasm.gz")"
