#!/usr/bin/env python3
"""Training steps of several builds of tapezoo, interleaved in one run: what a change costs or buys.

    scripts/race_builds.py OLD NEW [MORE …] [--cells T32,d64] [--models lstm,mamba] [--rounds 8]

OLD, NEW: programs `step_time` (cargo build --release --example step_time). All take turns, forwards and backwards, on one
core; a row is a model at a size: milliseconds of processor time a step, medians over the rounds, and each over OLD.
"""
import argparse
import statistics
import sys

sys.dont_write_bytecode = True
from cells import MODELS, WIDE, Program, sizes, toml


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("builds", nargs="+", metavar="STEP_TIME")
    parser.add_argument("--cells", default="T32,d64", help="T32, T256: the published sizes; d64, d128: that width")
    parser.add_argument("--models", default=",".join(MODELS + WIDE))
    parser.add_argument("--rounds", type=int, default=8)
    args = parser.parse_args()
    builds = [Program(build) for build in args.builds]
    print("| size | model |" + " ms |" * len(builds) + " ratio |" * (len(builds) - 1))
    print("|---|---|" + "---|" * (2 * len(builds) - 1))
    for size in args.cells.split(","):
        for mixer in args.models.split(","):
            if mixer in WIDE and size.startswith("T"):
                continue
            config = toml(sizes(mixer, size))
            for build in builds:
                build.ask(open="it", config=config)
            first = max(build.ask(run="it", steps=3)["ms"] for build in builds)
            steps, times = max(1, int(60 / first)), [[] for _ in builds]
            for turn in range(args.rounds):
                order = list(range(len(builds)))
                for i in order if turn % 2 else reversed(order):
                    times[i].append(builds[i].ask(run="it", steps=steps)["ms"])
            for build in builds:
                build.ask(close="it")
            medians = [statistics.median(list) for list in times]
            cells = [f"{ms:.3f}" for ms in medians] + [f"{ms / medians[0]:.2f}" for ms in medians[1:]]
            print(f"| {size} | {mixer} | " + " | ".join(cells) + " |", flush=True)


main()
