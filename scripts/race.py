#!/usr/bin/env python3
"""Training steps of tapezoo, PyTorch and JAX beside each other, in one run on this machine, as the table of
docs/performance.md.

    scripts/race.py [--cells T32,d64] [--models lstm,mamba] [--rounds 6] [--write]

It installs PyTorch and JAX from PyPI into target/python (once), unless TAPEZOO_PYTHON is a Python that has torch, jax, numpy
and safetensors. Each competitor is a process of its own with the same weights, on one core and one thread, with the same
settings of malloc; its loss and gradients are compared with ours before it is timed. Then all take turns, A B C D D C B A, in
processor time. All numbers go to target/race.json, cell by cell, and --write puts all that it holds into the page, a
table for each day, machine and set of versions. With torch.compile's compilations all cells take about an hour and a half; leave
the machine alone meanwhile.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from datetime import date

sys.dont_write_bytecode = True
os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import race_jax
from cells import LONG, MEMORIES, MODELS, SIZES, Program, build, processor, sizes, toml
from marks import insert
from results import NAMES

# Memory that was given back would be faulted in anew in every step: all programs keep it, in pages of 2 MB.
MALLOC = {
    "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000", "MALLOC_TOP_PAD_": "67108864",
    "MALLOC_ARENA_MAX": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
# The ways of torch_models.py that were fastest; where there are several, the race is with the fastest on this machine.
EAGER = {
    "lstm": ["nn.LSTM"], "quasi_lstm": ["scan in one function"], "lru": ["chunks of 32", "scan in one function"],
    "linear_transformer": ["masked product", "chunks of 32"], "gpt": ["scaled_dot_product_attention", "softmax"],
    "delta_net": ["chunks of 32"], "mamba": ["scan in one function", "selective scan in one function"],
} | {mixer: ["chunks of 32", "recurrence"] for mixer in MEMORIES}
# The ways that torch.compile is given. It unrolls loops, and would compile loops over 256 steps for hours.
COMPILED = {
    "lstm": ["unbind loop", "nn.LSTM"], "quasi_lstm": ["unbind loop", "scan in one function"], "lru": ["chunks of 32", "scan in one function"],
    "linear_transformer": ["masked product", "chunks of 32"], "gpt": ["softmax", "scaled_dot_product_attention"],
    "delta_net": ["chunks of 32"], "mamba": ["unbind loop", "scan in one function"],
} | {mixer: ["chunks of 32", "recurrence"] for mixer in MEMORIES}


def python():
    """A Python with PyTorch and JAX."""
    own = os.environ.get("TAPEZOO_PYTHON")
    if not own and not os.path.exists("target/python/bin/python"):
        print("installing PyTorch and JAX into target/python", file=sys.stderr)
        subprocess.run(["rm", "-rf", "target/python.part"], check=True)
        subprocess.run([sys.executable, "-m", "venv", "target/python.part"], check=True)
        install = ["target/python.part/bin/python", "-m", "pip", "install", "--quiet", "torch", "jax", "numpy", "safetensors"]
        subprocess.run(install, check=True)
        os.rename("target/python.part", "target/python")
    return own or "target/python/bin/python"


class Competitor:
    def __init__(self, name, program, said, request, steps=1):
        """`steps`: the steps of a call; the competitor takes multiples of them."""
        self.name, self.way, self.program, self.samples = name, said, program, []
        self.unit = self.steps = steps
        self.off = program.ask(**request).get("off")

    def sample(self):
        self.samples.append(self.program.ask(run="it", steps=self.steps)["ms"])

    def warm(self, least_ms):
        for _ in range(2):
            self.sample()
        self.steps = self.unit * max(1, round(least_ms / min(self.samples) / self.unit))
        self.samples.clear()

    def said(self):
        x = sorted(self.samples)
        tenth = len(x) // 10
        return {"ms": statistics.median(x), "low": x[tenth], "high": x[-1 - tenth], "way": self.way, "off": self.off}


def of_torch(python, name, ways, c, path, options):
    """The fastest of the ways that these sizes allow."""
    compiled = name == "compiled"
    ways = [w for w in ways if c["T"] <= 32 or "loop" not in w and not (compiled and w == "recurrence")]
    ways = [w for w in ways if w != "masked product" or c["T"] <= 32] or ways
    found = []
    for way in ways:
        program = Program(python, "scripts/race_torch.py", **MALLOC, TORCHINDUCTOR_COMPILE_THREADS="1")
        request = {"open": c, "way": way, "compiled": compiled, "weights": path}
        it = Competitor(name, program, way, request)
        it.warm(options.sample_ms)
        if len(ways) > 1:
            for _ in range(3):
                it.sample()
        found.append(it)
    found.sort(key=lambda it: min(it.samples, default=0))
    for it in found[1:]:
        it.program.end()
    found[0].samples.clear()
    return found[0]


def cell(python, mixer, size, options, directory):
    """The times of all competitors on a model at a size."""
    c, path = sizes(mixer, size), os.path.join(directory, "weights.safetensors")
    ours = Program("target/release/examples/step_time", **MALLOC)
    ours.ask(check=path, config=toml(c, dtype="f32"))
    all_ = [Competitor("ours", ours, "", {"open": "it", "config": toml(c)})]
    all_.append(of_torch(python, "eager", EAGER[mixer], c, path, options))
    all_.append(of_torch(python, "compiled", COMPILED[mixer], c, path, options))
    if mixer in race_jax.WAYS:
        way = race_jax.way(mixer, size)
        program = Program(python, "scripts/race_jax.py", **MALLOC, **race_jax.environment(way))
        request = {"open": c, "way": way, "weights": path}
        all_.append(Competitor("jax", program, race_jax.said(way), request, way[2]))
    for one in all_:
        one.warm(options.sample_ms)
    for _ in range(options.rounds):
        for one in all_ + all_[::-1]:
            one.sample()
    for one in all_:
        one.program.end()
    return {one.name: one.said() for one in all_}


def ms(x):
    return f"{x:.0f}" if x >= 100 else f"{x:.1f}" if x >= 10 else f"{x:.2f}"


def markdown(result):
    rows, short = [], []
    for size in [*SIZES, LONG]:
        for mixer in MODELS + MEMORIES:
            found = result["cells"].get(f"{size} {mixer}")
            if not found:
                continue
            ours = found["ours"]["ms"]
            row = [f"{size} {NAMES[mixer]}", f"**{ms(ours)}** ({ms(found['ours']['low'])}–{ms(found['ours']['high'])})"]
            for name in ("eager", "compiled", "jax"):
                it = found.get(name)
                row.append(f"{ms(it['ms'])}, **{it['ms'] / ours:.2f}×**: {it['way']}" if it else "–")
            short += [f"{row[0]} ({name})" for name, it in found.items() if name != "ours" and it["ms"] <= ours]
            rows.append(f"| {' | '.join(row)} |")
    if not rows:
        return ""
    worst = max(it["off"] or 0 for found in result["cells"].values() for it in found.values())
    ahead = f"Ours is ahead in all {len(rows)}." if not short else f"Ours is not ahead in {', '.join(short)}."
    v = result["versions"]
    return f"""\
`scripts/race.py --write`, {v['date']}; {v['cpu']}, one core;
tapezoo at commit {v['tapezoo']}, PyTorch {v['torch']}, JAX {v['jax']} (Python {v['python']}).

Milliseconds of processor time a training step, medians of {result['samples']} samples in turn (of ours in brackets the 10th and
the 90th percentile), how many times as long as ours the others take, and how they are written. The largest relative difference
of a loss or gradient from ours is {worst:.0e}. {ahead}

| cell | ours | PyTorch, eager | torch.compile | JAX |
|---|---|---|---|---|
{chr(10).join(rows)}
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", default=",".join([*SIZES, LONG]))
    parser.add_argument("--models", default=",".join(MODELS + MEMORIES))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--sample-ms", type=float, default=60, help="how long a sample takes at least")
    parser.add_argument("--json", default="target/race.json")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    build("--example", "step_time")
    with_them = python()
    code = "import platform, torch, jax; print(torch.__version__, jax.__version__, platform.python_version())"
    said = subprocess.run([with_them, "-c", code], stdout=subprocess.PIPE, text=True)
    if said.returncode:
        sys.exit(f"{with_them}: expected a Python with torch and jax")
    torch, jax, python_version = said.stdout.split()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    versions = {
        "date": str(date.today()), "cpu": processor(), "tapezoo": commit, "torch": torch, "jax": jax,
        "python": python_version,
    }
    # A table for each day, machine and set of versions: cells of others do not stand beside these.
    results = []
    if os.path.exists(options.json):
        with open(options.json) as f:
            results = json.load(f)
    result = next((r for r in results if r["versions"] == versions), None) or {"versions": versions, "cells": {}}
    results = [r for r in results if r is not result] + [result]
    result["samples"] = 2 * options.rounds
    with tempfile.TemporaryDirectory() as directory:
        for size in options.cells.split(","):
            for mixer in options.models.split(","):
                if (mixer in MEMORIES and size not in ("d64", LONG)) or (mixer in MODELS and size == LONG):
                    continue
                found = cell(with_them, mixer, size, options, directory)
                for r in results:  # the newest figure of a cell is the one that stands
                    r["cells"].pop(f"{size} {mixer}", None)
                result["cells"][f"{size} {mixer}"] = found
                print(size, mixer, *[f"{n} {ms(it['ms'])} {it['way']}" for n, it in found.items()], sep="; ", file=sys.stderr, flush=True)
                with open(options.json, "w") as f:
                    json.dump(results, f, indent=1)
    text = "\n".join(filter(None, map(markdown, reversed(results))))
    print(text)
    if options.write:
        insert("docs/performance.md", "race.py", text)


main()
