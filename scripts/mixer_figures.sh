#!/usr/bin/env bash
# The screenshots of docs/mixers.md, from scripts/browser_test.sh, with a palette of 256 colours.
#
# Needs Node, and of Debian's packages chromium, fonts-dejavu-core, fonts-stix and pngquant.
set -euo pipefail
cd "$(dirname "$0")/.."
out=target/mixer_figures
# Pages that are gone leave nothing behind.
rm -f "$out"/*.html "$out"/figure_*.png
scripts/browser_test.sh "$out"
rm "$out/figure_long.png"
for file in "$out"/figure_*.png; do
  pngquant --force --strip --output "docs/figures/mixer_${file##*/figure_}" 256 "$file"
done
