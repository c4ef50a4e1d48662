#!/usr/bin/env bash
# Training steps of tapezoo and of PyTorch beside each other, in one run on this machine, as a table.
#
#   scripts/compare_torch.sh [--check] [--models NAME…] [--sizes T32 T256 d64 d128] [--rounds N]
#     [--programs] [--write] [--report]
#
# It installs PyTorch from PyPI into target/torch (once), unless TAPEZOO_TORCH_PYTHON is a Python that has torch, numpy
# and safetensors. Loss and gradients from the same weights are compared first (--check: and nothing else is done); then
# both sides take steps in turn, A B C C B A, each in its process on one thread, timed in that process's processor time.
# All numbers go to target/compare_torch.json; --write puts the tables into docs/performance.md (on a processor without
# AVX-512: docs/performance_avx2.md), --report those of the last run again; --programs also takes the wall time of two
# commands of the README. The whole table takes about 15 minutes with the default of 20 rounds; leave the machine alone
# meanwhile.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${TAPEZOO_TORCH_PYTHON:-}
if [ -z "$python" ]; then
  python=target/torch/bin/python
  if ! [ -x "$python" ]; then
    echo "installing PyTorch into target/torch" >&2
    rm -rf target/torch.part
    python3 -m venv target/torch.part
    # The virtual environment moves, so its python is called by name and its scripts are not used.
    target/torch.part/bin/python -m pip install --quiet torch numpy safetensors
    mv target/torch.part target/torch
  fi
fi
"$python" -c 'import numpy, safetensors, torch' || { echo "$python: expected torch, numpy and safetensors in it" >&2; exit 1; }
cargo build --release --quiet --example step_time --bin parity
# One thread, and no threads that spin while they wait.
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OMP_WAIT_POLICY=passive PYTHONDONTWRITEBYTECODE=1
exec "$python" scripts/compare_torch.py "$@"
