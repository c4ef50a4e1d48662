#!/usr/bin/env bash
# The costs of the CUDA kernels, from their machine code, on a machine without a GPU: docs/gpu.md says how to read them.
#
#   scripts/gpu_walk.sh                      all main launches in bf16: a row for each op's pass, then each launch
#   scripts/gpu_walk.sh --kernel outputs     those of kernels and ops with this in their name
#     --by-line                              and which lines of the source they issue instructions for, and of what kind
#     --dtype f32                            in f32
#     --fla                                  beside flash-linear-attention 0.6's Triton kernels; alone: only those
#     --against REV                          beside the same launches of an earlier revision
#   scripts/gpu_walk.sh --write              the tables of docs/gpu.md (about five minutes)
#   scripts/gpu_walk.sh --check              fails if a kernel made of tiles has not the mma of its formulas, or is worse than
#                                            recorded in scripts/sass/gates.txt (a minute)
#   scripts/gpu_walk.sh --check --write      records how they are now
#   scripts/gpu_walk.sh --record [FILE]      scripts/sass/launches.txt anew: what src/kernels launches, at the sizes of
#                                            examples/launches.rs; after a change of grids, shared memory or arguments
#   scripts/gpu_walk.sh --install            only the Python environment
#
# A kernel is compiled by NVRTC, as on a GPU, for sm_90, and disassembled; scripts/sass/warp.py runs some of its warps with
# true integers and addresses and counts what they issue. The first call makes a Python environment in target/sass (pip:
# NVRTC, Triton for nvdisasm and FLA, 1.3 GB); what is compiled is kept there too. An example:
#
#   scripts/gpu_walk.sh --kernel delta_rule --against HEAD~5      has my change to the delta rule made it cheaper?
#   scripts/gpu_walk.sh --kernel forward_4 --by-line              which lines of flash.cu cost the most?
set -euo pipefail
case "${1-}" in -h | --help)
  sed -n '2,/^set /s/^# \{0,1\}//p' "$0"
  exit
  ;;
esac
cd "$(dirname "$0")/.."

packages=(nvidia-cuda-nvrtc==13.0.88 triton==3.9.0 numpy==2.4.6 packaging==26.0 einops==0.8.2)
# FLA's own requirements include PyTorch, which compiling its kernels does not need.
alone=(fla-core==0.6.0)

environment() {
  local env=target/sass/venv
  [ "$(cat "$env/complete" 2> /dev/null)" = "${packages[*]} ${alone[*]}" ] && return
  rm -rf "$env"
  python3 -m venv "$env"
  timeout 600 "$env/bin/pip" install --quiet --retries 1 "${packages[@]}"
  timeout 300 "$env/bin/pip" install --quiet --retries 1 --no-deps "${alone[@]}"
  echo "${packages[*]} ${alone[*]}" > "$env/complete"
}

case "${1-}" in
--record) exec cargo run --quiet --example launches -- "${2-scripts/sass/launches.txt}" ;;
--install)
  environment
  exit
  ;;
esac
environment
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=scripts exec target/sass/venv/bin/python -m sass "$@"
