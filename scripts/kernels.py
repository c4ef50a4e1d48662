"""The cost and the gain of each kernel: the work of kernels.sh, which see."""
import argparse
import json
import os
import re
import statistics
import sys
from pathlib import Path

from cells import FURTHER, MEMORIES, MODELS, SIZES, WIDE, Program, sizes, toml
from marks import insert, table

STEP_TIME, PAGE = "target/release/examples/step_time", "docs/kernels.md"
# Kernels that belong to no single op: the switch of each in a configuration, or in the environment.
OTHERS = {
    "AVX-512 (AVX2 instead)": ({}, {"TAPEZOO_SIMD": "avx2"}),
    "all SIMD (plain loops instead)": ({}, {"TAPEZOO_SIMD": "plain"}),
    "a batch in parts that fit the cache (one part)": ({"micro_batches": 1}, {}),
    "`--products bf16` (the other way round, a step with it over one in f32: above 1, it costs)": ({"products": "bf16"}, {}),
}
# Before kernels were apart from ops, in the folders that these came from: blocks, functions.
BEFORE = {"src/tensor": (6, 1), "src/kernels/gemm": (100, 62), "src/kernels/lanes": (26, 10), "src/cuda": (33, 1), "other": (2, 0)}
WHY = {
    "src/tensor": "memory from the system by whole pages, of which buffers are parts",
    "src/kernels/gemm": "vectors of one instruction set, loaded and stored through pointers into a matrix whose rows lie apart",
    "src/kernels/lanes": "vectors of one instruction set: their functions may be called only where the processor has it",
    "src/cuda": "calls of the driver, of NVRTC, of cuBLAS and of the emulator, and device memory that a kernel writes",
    "other": "arithmetic on vectors (`vector.rs`), and a prefetch",
}


def source(op):
    """The file of `impl Kernel for op`, written out or by a macro over several ops."""
    files = sorted(Path("src/kernels").rglob("*.rs"))
    texts = {f: f.read_text() for f in files}
    # One of several kernels is that of a schedule of the op, or of ops that have a rule in common.
    own = [f for f in files if re.search(rf"Kernel for (Schedule<)?{op}\b|impl Rule for {op}\b", texts[f])]
    by_macro = [f for f in files if "impl Kernel for $Op" in texts[f] and re.search(rf"\b{op}\b", texts[f])]
    return (own + by_macro)[0]


def lines(op):
    """(module, lines of Rust, lines of CUDA) of the module that holds the kernel."""
    name = source(op).relative_to("src/kernels").parts[0].removesuffix(".rs")
    root = Path("src/kernels")
    files = [root / f"{name}{end}" for end in (".rs", ".cu", "_cpu.rs", "_cuda.rs")] + sorted((root / name).rglob("*.*"))
    files = [f for f in files if f.is_file()]
    count = lambda *ends: sum(len(f.read_text().splitlines()) for f in files if f.suffix in ends)
    return name, count(".rs"), count(".cu", ".cuh")


def shared(modules):
    """Lines of the modules of src/kernels that belong to no op: {name: lines of Rust}."""
    found = {}
    for f in sorted(Path("src/kernels").rglob("*.rs")):
        name = f.relative_to("src/kernels").parts[0].removesuffix(".rs")
        name = re.sub("_(cpu|cuda)$", "", name)
        if name not in modules and name != "mod":
            found[name] = found.get(name, 0) + len(f.read_text().splitlines())
    return found


def unsafe():
    """{folder: (blocks, functions)} in src."""
    found = {folder: [0, 0] for folder in BEFORE}
    for f in Path("src").rglob("*.rs"):
        folder = next((folder for folder in BEFORE if f"{f}".startswith((f"{folder}/", f"{folder}.rs"))), "other")
        code = re.sub(r"//.*", "", f.read_text())
        found[folder][0] += len(re.findall(r"\bunsafe \{", code))
        found[folder][1] += len(re.findall(r"\bunsafe fn\b", code))
    return found


def ratio(with_, without, options):
    """How many times as long a step takes without a kernel: medians in turns. A ratio far from 1 needs few rounds."""
    step = lambda side, n: side[0].ask(run=side[1], steps=n)["ms"]
    first = step(with_, 1), step(without, 1)
    first = step(with_, 1), step(without, 1) if first[1] < 500 else first[1]  # the first of all faults its memory in
    if first[1] > 4 * first[0]:
        of = lambda side, n: statistics.median(step(side, 1) for _ in range(n))
        return of(without, 3 if first[1] < 500 else 1) / of(with_, 9)
    n, times = max(1, round(options.sample_ms / first[0])), ([], [])
    for turn in range(options.rounds):
        for i in (0, 1) if turn % 2 else (1, 0):
            times[i].append(step((with_, without)[i], n))
    return statistics.median(times[1]) / statistics.median(times[0])


def measure(config, kernels, program, others, options):
    """{kernel or other: ratio} of the kernels that run in this cell; `config` gives its configuration with more settings."""
    found, with_ = {}, (program, "with")
    program.ask(open="with", config=config())
    for op in program.ask(profile="with", steps=1)["ops"]:
        if op in kernels:
            program.ask(open="without", config=config(kernels=f"fast,-{op}"))
            found[op] = ratio(with_, (program, "without"), options)
            program.ask(close="without")
    for name, other in others.items():
        settings, _ = OTHERS[name]
        other.ask(open="without", config=config(**settings))
        found[name] = ratio(with_, (other, "without"), options)
        other.ask(close="without")
    program.ask(close="with")
    return found


def other_forms(models):
    """(name, configuration) of the slower forms of these mixers, at two sizes, and of the published models."""
    for size, batch in ("T32", 32), ("d64", 16):
        for mixer in models:
            for form in "recurrent", "parallel", "chunked":
                c = sizes(mixer, size) | {"B": batch}
                yield f"{size}, {mixer} {form}", lambda c=c, form=form, **more: toml(c, form=form, **more)
    # Kernels that none of these reaches: for larger states, and of other mixers.
    for size, mixer in (cell for cell in (("d128", "rwkv7"), ("d64", "hgrn2"), ("d64", "lightnet")) if cell[1] in models):
        yield f"{size}, {mixer}", lambda c=sizes(mixer, size) | {"B": 16}, **more: toml(c, **more)
    for mixer in (mixer for mixer in MODELS if mixer in models):
        c = sizes(mixer, "T32")
        yield f"T32, published {mixer}", lambda c=c, **more: toml(c, model={"variant": "published"}, **more)


def forms(program, about, options):
    """The table of the kernels that gain little in the cells, by the page: the most that each gains elsewhere."""
    with open(PAGE) as f:
        rows = re.findall(r"^\| `([\w.]+)` \| `[^|]*\| (\S+) \|", f.read(), re.M)
    little = [op for op, most in rows if op in about["kernels"] and (most == "–" or float(most) < 1.1)]
    best = {}
    for name, config in other_forms(options.models.split(",")):
        if "error" in program.answer(open="with", config=config()):
            continue  # not every mixer has every form
        found = measure(config, little, program, {}, options)
        print(name, ", ".join(f"{op} {r:.2f}" for op, r in found.items()), file=sys.stderr, flush=True)
        for op, r in found.items():
            best[op] = max(best.get(op, (0, "")), (r, name))
    none = ", ".join(f"`{op}`" for op in little if op not in best)
    rows = [[f"`{op}`", f"{best[op][0]:.2f}", best[op][1]] for op in sorted(best)]
    return f"""\
`scripts/kernels.sh --forms --write`, one core, medians of {options.rounds} samples in turn; {about['build'].replace(chr(10), '; ')}:

{table(["kernel", "most", "where"], rows)}

In none of these: {none or 'none'}.
"""


def cells_of(name, found):
    """The ratios of a kernel by size: 'T32: lstm 1.20, gpt 1.05'."""
    by = {}
    for cell, ratios in found.items():
        if name in ratios:
            size, mixer = cell.split()
            by.setdefault(size, []).append(f"{mixer} {ratios[name]:.2f}")
    return "; ".join(f"{size}: {', '.join(by[size])}" for size in SIZES if size in by) or "–"


def markdown(result, kernels):
    found = result["cells"]
    most = lambda name: max((r[name] for r in found.values() if name in r), default=None)
    modules = {}
    for op, kind in kernels.items():
        if any(name.startswith(f"{op}.") for name in kernels):
            continue  # the name of an op stands for its several kernels, which have rows of their own
        modules.setdefault(lines(kind), []).append(op)
    rows, small, never = [], [], []
    for (module, rust, cuda), ops in sorted(modules.items(), key=lambda m: -m[0][1]):
        for i, op in enumerate(ops):
            top = most(op)
            here = f"`{module}` {rust} + {cuda}" if i == 0 else f"`{module}`, too"
            rows.append([f"`{op}`", here, f"{top:.2f}" if top else "–", cells_of(op, found)])
            small += [f"`{op}` ({top:.2f})"] if top and round(top, 2) < 1.1 else []
            never += [f"`{op}`"] if not top else []
    others = [[name, f"{most(name):.2f}" if most(name) else "–", cells_of(name, found)] for name in OTHERS]
    parts = [[f"`{name}`", n] for name, n in shared({m[0] for m in modules}).items()]
    counts = unsafe()
    places = [[f"`{k}`" if "/" in k else k, *BEFORE[k], *counts[k], WHY[k]] for k in BEFORE]
    total = lambda x: [sum(v[i] for v in x.values()) for i in (0, 1)]
    places.append(["all", *total(BEFORE), *total(counts), ""])
    return f"""\
`scripts/kernels.sh --write`, {len(found)} cells, one core, medians of {result['rounds']} samples in turn:

```text
{result['build']}
```

{table(["kernel", "module, lines of Rust + CUDA", "most", "a step without it over one with it"], rows)}

Under 1.10 in every cell where they run: {', '.join(small) or 'none'}. In no cell: {', '.join(never) or 'none'}.

Not of one op:

{table(["optimisation (instead)", "most", "a step without it over one with it"], others)}

Lines of Rust that several kernels share:

{table(["module", "lines"], parts)}

`unsafe` in `src`:

{table(["folder", "blocks before", "functions before", "blocks", "functions", "for"], places)}
"""


def main():
    parser = argparse.ArgumentParser(description="What each kernel costs and buys; see kernels.sh.")
    parser.add_argument("--cells", default=",".join(SIZES))
    parser.add_argument("--models", default=",".join(MODELS + WIDE + MEMORIES + FURTHER))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--forms", action="store_true", help="what buys little in the cells, in other forms and published models")
    parser.add_argument("--sample-ms", type=float, default=40, help="how long a sample takes at least")
    parser.add_argument("--json", default="target/kernels.json", help="where the ratios are kept")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    if options.forms and options.write and options.models != parser.get_default("models"):
        parser.error("--forms --write puts the whole table into the page; leave out --models, or --write")
    program = Program(STEP_TIME)
    result = {"cells": {}}
    if os.path.exists(options.json):
        with open(options.json) as f:
            result = json.load(f)
    about = program.ask(kernels=True)
    if options.forms:
        text = forms(program, about, options)
        print(text)
        return insert(PAGE, "kernels.sh --forms", text) if options.write else None
    runs = lambda m, s: s == "d64" if m in MEMORIES + FURTHER else s[0] == "d" or m not in WIDE
    cells = [(m, s) for s in options.cells.split(",") for m in options.models.split(",") if runs(m, s)]
    if not options.report:
        if result.get("build") != about["build"]:  # cells of another build do not stand beside these
            result = {"build": about["build"], "cells": {}}
        result["rounds"] = options.rounds
        has_bf16 = "avx512_bf16" in Path("/proc/cpuinfo").read_text()
        others = {name: Program(STEP_TIME, **env) for name, (_, env) in OTHERS.items() if has_bf16 or "bf16" not in name}
        for mixer, size in cells:
            config = lambda c=sizes(mixer, size), **more: toml(c, **more)
            found = measure(config, about["kernels"], program, others, options)
            result["cells"][f"{size} {mixer}"] = found
            print(size, mixer, ", ".join(f"{op} {r:.2f}" for op, r in found.items()), file=sys.stderr, flush=True)
            with open(options.json, "w") as f:
                json.dump(result, f, indent=1)
    elif not result["cells"]:
        sys.exit(f"{options.json} has no cells; --report writes what an earlier call has measured")
    text = markdown(result, about["kernels"])
    print(text)
    if options.write or options.report:
        insert(PAGE, "kernels.sh", text)


main()
