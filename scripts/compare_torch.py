"""Training steps of tapezoo and of PyTorch, interleaved in one run: the work of compare_torch.sh, which see.

Both sides take the same steps: forward, backward, Adam, of the same model at the same sizes in single precision, on one
thread, in processor time of their process (ours makes its batch as well). The loss and gradients from the same
weights are compared first.
"""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date

import numpy
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import compare_torch_tables as tables
import torch_models
import torch_published
from cells import Ours, sizes, toml
from compare_torch_tables import NAMES, SIZES, goal
from marks import insert


class Theirs:
    """A model of PyTorch in training."""

    def __init__(self, model, c, fused):
        self.model = model
        self.adam = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, fused=fused)
        self.tokens = torch.randint(2, (c["B"], c["T"]))
        self.targets = 1 - self.tokens.cumsum(1) % 2

    def loss(self, tokens, targets):
        return F.cross_entropy(self.model(tokens).flatten(0, 1), targets.flatten())

    def run(self, steps):
        start = time.process_time()
        for _ in range(steps):
            self.adam.zero_grad(set_to_none=True)
            self.loss(self.tokens, self.targets).backward()
            self.adam.step()
        return (time.process_time() - start) * 1e3 / steps


def compare(what, model, ours, tolerance):
    """Loss and every gradient of `model` with those in the tensors `ours`: the largest relative error."""
    named = list(zip(model.names, model.all)) if hasattr(model, "names") else list(model.named_parameters())
    loss = F.cross_entropy(model(ours["tokens"].long()).flatten(0, 1), ours["targets"].long().flatten())
    grads = torch.autograd.grad(loss, [w for _, w in named])
    pairs = [("loss", loss.detach()[None], ours["loss"])]
    pairs += [(f"the gradient of {name}", g, ours[f"grad.{name}"]) for (name, _), g in zip(named, grads)]
    # A gradient that is zero but for rounding, as that of a bias before a norm, is measured by the others.
    least = 1e-3 * max(b.norm().item() / b.numel() ** 0.5 for _, _, b in pairs[1:])
    worst = 0.0
    for name, a, b in pairs:
        scale = max(b.norm().item(), least * b.numel() ** 0.5)
        error = (a - b).norm().item() / scale
        if not error <= tolerance:
            sys.exit(f"{what}: {name} differs by {error:.1e} of {scale:.1e}: not the same model, nothing was timed")
        worst = max(worst, error)
    return worst


def check_shapes(what, expected, ours):
    """Same names, same shapes, or an error that names the tensor."""
    given = {name[6:]: tuple(t.shape) for name, t in ours.items() if name.startswith("param.")}
    for name in sorted(set(expected) | set(given)):
        a, b = [shapes.get(name, "absent") for shapes in (expected, given)]
        if a != b:
            sys.exit(f"{what}: tensor {name} is {a} in PyTorch and {b} in tapezoo")


def weights(ours, names):
    return {name: ours[f"param.{name}"] for name in names}


def load(model, ours):
    model.load_state_dict(weights(ours, [n for n, _ in model.named_parameters()]), strict=False)
    return model


def check(ours, c, directory, published):
    """The models of a cell with our weights, after they are known to be the same: {way: model}, error, parameters."""
    found, errors, counts = {}, {}, {}
    for dtype in ("f64", "f32"):
        what = f"{c['mixer']} B={c['B']} T={c['T']} d={c['width']} {dtype}"
        path = os.path.join(directory, "check.safetensors")
        shapes = torch_models.shapes(c)
        counts["same"] = ours.ask(check=path, config=toml(c, dtype=dtype))["parameters"]
        tensors = load_file(path)
        check_shapes(what, shapes, tensors)
        torch.set_default_dtype(tensors["loss"].dtype)
        for way in torch_models.ways(c):
            model = torch_models.Decoder(c, way, weights(tensors, shapes))
            error = compare(f"{what}, {way}", model, tensors, 1e-4 if dtype == "f32" else 1e-9)
            errors[dtype] = max(errors.get(dtype, 0), error)
            found[way] = model
        # The published LRU loses digits in single precision, whoever computes it.
        if published and (dtype == "f64" or c["mixer"] != "lru"):
            config = toml(c, dtype=dtype, model={"variant": "published"})
            counts["published"] = ours.ask(check=path, config=config)["parameters"]
            tensors = load_file(path)
            model = torch_published.model(c)
            check_shapes(f"{what}, published", {n: tuple(w.shape) for n, w in model.named_parameters()}, tensors)
            load(model, tensors)
            error = compare(f"{what}, published", model, tensors, 1e-4 if dtype == "f32" else 1e-6)
            errors[dtype] = max(errors[dtype], error)
            published = model
    torch.set_default_dtype(torch.float32)
    return found, published and published.float(), errors, counts


def quantile(x, q):
    return float(numpy.quantile(x, q))


class Timed:
    """One competitor of a cell: its samples, in ms a step."""

    def __init__(self, run, least_ms):
        self.run, self.samples = run, []
        run(2)
        first = min(run(1) for _ in range(2))
        self.steps = max(1, round(least_ms / max(first, 1e-3)))

    def sample(self):
        self.samples.append(self.run(self.steps))

    def said(self):
        s = self.samples
        median, low = statistics.median(s), quantile(s, 0.1)
        return {"ms": median, "p10": low, "spread": (quantile(s, 0.9) - low) / median, "samples": len(s), "steps": self.steps}


def cell(ours, rounded, mixer, size, options, directory):
    """Everything about a model at a size; where it is wide, ours with products rounded to bf16 too, if there are any."""
    c = sizes(mixer, size)
    looped = size in ("T32", "T256")
    models, published, errors, counts = check(ours, c, directory, looped)
    about = ours.ask(open="it", config=toml(c))
    if about["parameters"] != counts["same"]:
        sys.exit(f"{mixer}, {size}: {about['parameters']} parameters are trained, {counts['same']} were compared")
    result = {"mixer": mixer, "size": size, "sizes": c, "form": about["form"], "parameters": counts, "errors": errors}
    competitors = {"ours": Timed(lambda n: ours.ask(run="it", steps=n)["ms"], options.sample_ms)}
    ways = {way: Timed(Theirs(model, c, True).run, options.sample_ms) for way, model in models.items()}
    for way in ways.values():
        for _ in range(5 if len(ways) > 1 else 0):
            way.sample()
    result["ways"] = {way: min(timed.samples) for way, timed in ways.items() if timed.samples}
    result["best_way"] = min(result["ways"], key=result["ways"].get) if result["ways"] else next(iter(ways))
    competitors["best"] = ways[result["best_way"]]
    competitors["best"].samples.clear()
    if looped:
        competitors["published"] = Timed(Theirs(published, c, False).run, options.sample_ms)
    if rounded and c["width"] >= 64:
        rounded.ask(open="it", config=toml(c))
        competitors["bf16"] = Timed(lambda n: rounded.ask(run="it", steps=n)["ms"], options.sample_ms)
    order = list(competitors.values())
    for _ in range(options.rounds):
        for one in order + order[::-1]:  # A B C C B A
            one.sample()
    result |= {name: one.said() for name, one in competitors.items()}
    # By the clock on the wall, so that the quickest of some is the one that nobody disturbed.
    profiles = [ours.ask(profile="it", steps=max(3, competitors["ours"].steps // 4))["ops"] for _ in range(5)]
    result["ops"] = min(profiles, key=lambda ops: sum(f + b for f, b, _ in ops.values()))
    for side in [ours] + [rounded] * ("bf16" in competitors):
        side.ask(close="it")
    return result


def machine(ours):
    """What the CPU can do here, on one thread: GFLOP/s of a product, GB/s of a copy, ns an element of functions."""
    a = torch.randn(1024, 1024)
    out, big, copy = torch.empty_like(a), torch.zeros(1 << 26), torch.zeros(1 << 26)

    def best(f, n):
        times = []
        for _ in range(n):
            start = time.process_time()
            f()
            times.append(time.process_time() - start)
        return min(times)

    gflops = 2 * 1024**3 / best(lambda: torch.mm(a, a, out=out), 10) / 1e9
    copied = 2 * 4 * big.numel() / best(lambda: copy.copy_(big), 5) / 1e9
    return {"gflops": gflops, "copy": copied, "elements": ours.ask(elements=4096)}


def cpuinfo():
    with open("/proc/cpuinfo") as f:
        info = dict(line.split(":", 1) for line in f.read().split("\n\n")[0].splitlines() if ":" in line)
    return {k.strip(): v.strip() for k, v in info.items()}


def has_bf16():
    """Whether the processor multiplies numbers of bf16."""
    try:
        return "avx512_bf16" in cpuinfo().get("flags", "").split()
    except OSError:
        return False


def cpu():
    try:
        info = cpuinfo()
        family = f"family {info.get('cpu family')}, model {info.get('model')}"
        level = "AVX-512" if "avx512f" in info.get("flags", "") else "AVX2" if "avx2" in info.get("flags", "") else "no AVX2"
        return f"{info.get('model name', platform.machine())} ({family}, {level}), {os.cpu_count()} cores"
    except OSError:
        return platform.processor() or platform.machine()


def page(cpu):
    """Where the tables of such a processor stand: those without AVX-512 have a page of their own."""
    return "docs/performance.md" if "AVX-512" in cpu else "docs/performance_avx2.md"


def versions():
    run = lambda *command: subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return {
        "date": str(date.today()), "cpu": cpu(), "tapezoo": run("git", "rev-parse", "--short", "HEAD"),
        "rustc": run("rustc", "--version").split(" (")[0], "torch": torch.__version__,
        "python": platform.python_version(), "system": platform.system(),
    }


def main():
    parser = argparse.ArgumentParser(description="PyTorch and tapezoo beside each other; see compare_torch.sh.")
    parser.add_argument("--ours", default="target/release/examples/step_time", help=argparse.SUPPRESS)
    parser.add_argument("--models", nargs="+", choices=NAMES, default=list(NAMES), help="some rows")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES), help="some columns")
    parser.add_argument("--rounds", type=int, default=20, help="each A B C C B A: two samples of each (default 20)")
    parser.add_argument("--sample-ms", type=float, default=50, help="a sample is at least so long (default 50)")
    parser.add_argument("--programs", action="store_true", help="also take the wall time of parity, by default and --preset published")
    parser.add_argument("--json", default="target/compare_torch.json", help="where all numbers go")
    parser.add_argument("--check", action="store_true", help="compare losses and gradients, time nothing")
    parser.add_argument("--report", action="store_true", help="time nothing: print the table of the last run's numbers")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/performance.md, or without AVX-512 docs/performance_avx2.md, between the marks")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    torch.manual_seed(0)


    if options.report:
        with open(options.json) as f:
            result = json.load(f)
    else:
        result = measure(options)
        if result is None:
            return
        with open(options.json, "w") as f:
            json.dump(result, f, indent=1)
    text = tables.markdown(result)
    print(text)
    if options.write:
        insert(page(result["versions"]["cpu"]), "compare_torch.sh", text)


def measure(options):
    ours = Ours(options.ours)
    result = {"versions": versions(), "options": vars(options), "cells": []}
    cells = [(mixer, size) for size in options.sizes for mixer in options.models if goal(mixer, size)]
    with tempfile.TemporaryDirectory() as directory:
        if options.check:
            for mixer, size in cells:
                c = sizes(mixer, size)
                _, _, errors, counts = check(ours, c, directory, size in ("T32", "T256"))
                shown = ", ".join(f"{dtype} {error:.0e}" for dtype, error in errors.items())
                print(f"{size:5} {mixer:20} parameters {counts}  largest error {shown}")
            return None
        result["machine"] = machine(ours)
        rounded = Ours(options.ours, "--products", "bf16") if has_bf16() else None
        for i, (mixer, size) in enumerate(cells):
            start = time.time()
            it = cell(ours, rounded, mixer, size, options, directory)
            result["cells"].append(it)
            theirs = f"{it['published']['ms']:.1f} / " if "published" in it else ""
            said = f"{it['ours']['ms']:.2f} ms, PyTorch {theirs}{it['best']['ms']:.2f} ({it['best_way']})"
            print(f"[{i + 1}/{len(cells)}] {size} {mixer}: {said}, {time.time() - start:.0f} s", file=sys.stderr, flush=True)
    if options.programs:
        result["programs"] = [program(*flags) for flags in ([], ["--preset", "published"])]
    return result


def program(*flags):
    """The wall time of parity with these flags, on as many cores as it takes."""
    with tempfile.TemporaryFile() as out:
        start = time.time()
        subprocess.run(["target/release/parity", *flags], stdout=out, stderr=subprocess.DEVNULL, check=True)
        return {"flags": list(flags), "wall": time.time() - start}


if __name__ == "__main__":
    main()
