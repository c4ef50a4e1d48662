#!/usr/bin/env python3
"""Recall against state: how many pairs of a key and a value each rule of a memory recalls, at two sizes of the state.

    scripts/recall.py run [--quick]      train examples/recall.rs on MQAR of several sizes; 1.5 core-hours
    scripts/recall.py table [--write]    print the table, or put it into docs/zoo_results.md

As in scripts/zoo.py, of which this is a small sister: the learning rate is chosen on a seed that is not reported, the same
command goes on where an earlier one was stopped, and the accuracies go to docs/zoo_results/recall/STATE-PAIRS.tsv.

    cargo build --release --bin tapezoo --example recall && scripts/recall.py run && scripts/recall.py table --write
"""
import os
import sys

sys.dont_write_bytecode = True
import zoo
from marks import table
from results import curves

CONFIG = zoo.ROOT / "examples" / "recall.toml"
KEPT = zoo.KEPT / "recall"
# K of a state of K² numbers, and the pairs in a sequence.
SIZES = [8, 16]
FIGURE = "figures/zoo_recall_{}.svg"
PAIRS = [2, 4, 8, 16]
TASK = """task = {{ name = "mqar", layout = "zoology", vocab = 64, pairs = {pairs} }}
train_len = 64
eval_lens = [64]
steps = 3000
batch = 32
model.head_dim = {size}
"""
# The rules as docs/zoo_results.md names them, and the numbers that each keeps.
RULES = {
    "identity": "A = I", "scalar": "a number", "diagonal": "diagonal", "delta": "delta rule", "delta_scalar": "delta rule and a number",
    "delta_diagonal": "delta rule and diagonal", "slots": "slots", "memories": "four memories", "levels": "log T states", "cache": "cache",
}


def main():
    args = zoo.asked_for(__doc__, ["run", "table"], "recall", ("RECALL", "examples/recall"), trains=True).parse_args()
    if args.what == "table":
        if args.write:
            draw(os.environ.get("TAPEZOO") or zoo.ROOT / "target" / "release" / "tapezoo")
        return zoo.show("recall.py", page(), args.write)
    for size in SIZES:
        for pairs in PAIRS:
            head, name = TASK.format(size=size, pairs=pairs), f"{size * size}-{pairs}"
            zoo.train(head, CONFIG.read_text(), args.out / name, KEPT / f"{name}.tsv", args)


def learned(size):
    """The results at one size, for each number of pairs."""
    none = {"title": "recall", "why": "", "can": [], "cannot": []}
    return [zoo.Learned((KEPT / f"{size * size}-{pairs}.tsv").read_text(), none, {}, list(RULES)) for pairs in PAIRS]


def draw(program):
    """A figure for each size: the accuracy of each rule over the number of pairs."""
    for size in SIZES:
        of = learned(size)
        rows = {name: {pairs: o.values(rule, o.lengths[0]) for pairs, o in zip(PAIRS, of)} for rule, name in RULES.items()}
        curves(program, rows, "pairs", f"Accuracy over pairs, {size * size} numbers of state", zoo.ROOT / "docs" / FIGURE.format(size * size))


def page():
    """For each size a figure, and rows of rules and columns of pairs: the median over the seeds, and the range."""
    parts, builds = ["\n".join(f"![Recall over pairs, {size * size} numbers]({FIGURE.format(size * size)})" for size in SIZES)], set()
    for size in SIZES:
        of = learned(size)
        rows = [[name, *(zoo.spread(o.values(rule, o.lengths[0])) for o in of)] for rule, name in RULES.items()]
        parts.append(table([f"{size * size} numbers", *(f"{pairs} pairs" for pairs in PAIRS)], rows))
        builds |= {o.build for o in of}
    return "\n\n".join([*parts, f"*`scripts/recall.py`; {'; '.join(sorted(builds))}.*"]) + "\n"


if __name__ == "__main__":
    main()
