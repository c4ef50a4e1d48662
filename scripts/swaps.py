#!/usr/bin/env python3
"""Swaps of S5: which reflections have the models of docs/zoo_results.md learned?

    scripts/swaps.py run [--quick]    look into the runs of `scripts/zoo.py run s5_swaps`; a minute
    scripts/swaps.py table [--write]  print the table, or put it into docs/zoo_results.md

Ten reflections whose products permute five things have keys at 60° where two swaps share a thing, and at 90° where they do
not. Up to names and signs there are seven such sets, e_i + s_ij e_j with signs s. In the differences, the edges of a simplex in
four dimensions, the product of the cosines of three swaps of three things is -1/8 in all ten triples; in the sums 1/8 in all.

A head's key for a swap is the mean over the places of a drawn sequence, scaled to a length of 1. Of the heads that reflect at every
swap, each step and each memory for itself, the one whose cosines are closest to such a set goes to
docs/zoo_results/swaps/keys.tsv, a line a run.

    scripts/zoo.py run s5_swaps && scripts/swaps.py run && scripts/swaps.py table --write
"""
import os
import statistics
import sys
from itertools import combinations
from math import sqrt

sys.dont_write_bytecode = True
import zoo
from marks import table
from results import Page, Results, build, score

KEPT = zoo.KEPT / "swaps" / "keys.tsv"
MODELS = ["delta_net_signed", "gated_delta_net_signed", "delta_product_signed", "kda_signed", "rwkv7_signed", "mom_signed"]
SWAPS = list(combinations("12345", 2))
# A head reflects if beta, from 0 to 2, is so much on average over the swaps: more turns round than is kept.
REFLECTS = 1.5
COLUMNS = ["block", "beta", "beta of e", "off by", "least of three", "most of three"]
# The length of the accuracy beside it: eight times the training length.
LENGTH = "128"


def main():
    args = zoo.asked_for(__doc__, ["run", "table"]).parse_args()
    if args.what == "run":
        run(args.out / "s5_swaps" / "final", args.program, args.quick)
    else:
        zoo.show("swaps.py", page(), args.write)


def run(path, program, quick):
    """Look into every run at `path` of the models that reflect."""
    if not Results.finished(path):
        sys.exit(f"{path} has not all its runs; scripts/zoo.py run s5_swaps makes them")
    results = Results(path)
    text = [f"# {build(path, results.made_by())}", "\t".join(["model", "seed", "accuracy", *COLUMNS])]
    for model in MODELS:
        # A run that diverged has no accuracy, and no weights to look at.
        for made in sorted((r for r in results.runs if r["model"] == model and r.get("accuracy")), key=lambda r: r["seed"]):
            seed, accuracy = made["seed"], made["accuracy"][LENGTH]
            scratch = str(path / "swaps")
            seen = Page(program, ["--checkpoint", str(path / f"{model}-seed{seed}"), "--len", "512"], scratch)
            for ending in ".html", ".json", ".safetensors":
                os.remove(scratch + ending)
            text.append("\t".join([model, str(seed), str(accuracy), *map(str, closest(seen))]))
            print(text[-1], file=sys.stderr, flush=True)
    zoo.keep(KEPT, "\n".join(text), quick)


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


def heads(seen, block):
    """Keys and beta at each place, of each head, step and memory of a block: [(keys, betas)]."""
    name = f"run1.blocks.{block}.mixer."
    # RWKV-7 erases under a κ what it finds under κ.
    erases = name + "minus kappa" in seen.about
    of = name + ("minus kappa" if erases else "k")
    k, other, width = seen.tensor(of), seen.tensor(name + ("a kappa" if erases else "beta")), seen.about[of]["shape"][-1]
    for i in range(len(k[0]) // width):
        cut = lambda rows: [row[i * width : (i + 1) * width] for row in rows]
        keys = cut(k)
        yield keys, [-dot(a, b) for a, b in zip(keys, cut(other))] if erases else [row[i] for row in other]


def closest(seen):
    """COLUMNS of the head closest to ten such reflections: `off by` is the largest error of a squared cosine."""
    at = {}
    for place, token in enumerate(seen.data["tokens"]):
        at.setdefault(token, []).append(place)
    best = None
    for block in 0, 1:
        for keys, beta in heads(seen, block):
            mean = lambda values, token: [statistics.mean(v) for v in zip(*(values[t] for t in at[token]))]
            of = {swap: mean(keys, f"({''.join(swap)})") for swap in SWAPS}
            size = lambda token: statistics.mean(beta[t] for t in at[token])
            reflects = statistics.mean(size(f"({''.join(swap)})") for swap in SWAPS)
            if reflects < REFLECTS:
                continue
            cos = lambda a, b: dot(of[a], of[b]) / sqrt(dot(of[a], of[a]) * dot(of[b], of[b]))
            off = max(abs(cos(a, b) ** 2 - (0.25 if set(a) & set(b) else 0)) for a, b in combinations(SWAPS, 2))
            three = [cos((a, b), (b, c)) * cos((b, c), (a, c)) * cos((a, b), (a, c)) for a, b, c in combinations("12345", 3)]
            found = [block + 1, *(round(x, 4) for x in (reflects, size("e"), off, min(three), max(three)))]
            if best is None or found[3] < best[3]:
                best = found
    return best or ["-"] * len(COLUMNS)


def page():
    """A row a run."""
    head, _, *lines = KEPT.read_text().splitlines()
    rows = []
    for model, seed, accuracy, *found in (line.split("\t") for line in lines):
        row = [zoo.shown(model), seed, score(float(accuracy))]
        if "-" in found:
            rows.append(row + ["none"] + [""] * 4)
            continue
        block, *numbers = found
        beta, *numbers = map(float, numbers)
        of_e, off, least, most = (f"{x:.3f}" for x in numbers)
        # A step of 2 is not reached: the digits are cut off, not rounded.
        beta = f"{round(beta * 10_000) // 10 / 1000:.3f}"
        rows.append([*row, block, off, f"{least} to {most}", beta, of_e])
    names = ["model", "seed", f"accuracy at {LENGTH}", "block", "cos² off by", "product of three cosines", "β of swaps", "β of e"]
    return f"{table(names, rows)}\n\n*`scripts/swaps.py`; {head.removeprefix('# ')}.*\n"


if __name__ == "__main__":
    main()
