#!/usr/bin/env python3
"""Train the zoo on one task after another, and write who can do what.

    zoo.py run TASK…  [--out DIR] [--program P] [--jobs N]
    zoo.py table      [--out DIR] [--program P]

`run` takes two steps for each task of configs/zoo/. It trains every model once from seed 100 with each learning rate of
RATES, and keeps the rate with the highest mean score over the lengths; then it trains from seeds 0, 1 and 2 with that
rate. Both steps leave ordinary run directories, DIR/TASK/choose and DIR/TASK/final. The same command goes on where an
earlier one was stopped.

`table` prints the table of docs/zoo_results.md from what is there: medians and ranges over the seeds.
"""

import argparse
import json
import pathlib
import signal
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "configs" / "zoo"
RATES = [2e-3, 8e-3]
CHOOSING_SEED = 100
SEEDS = 3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("tasks", nargs="*", help="names in configs/zoo; all by default")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "runs" / "zoo")
    parser.add_argument("--program", default=str(ROOT / "target" / "release" / "tapezoo"))
    parser.add_argument("--jobs", default="2")
    args = parser.parse_args()
    known = sorted(p.stem for p in CONFIGS.glob("*.toml") if p.stem != "models")
    for task in args.tasks:
        if task not in known:
            parser.error(f"{task}: no such task; configs/zoo has {', '.join(known)}")
    for task in args.tasks or known:
        run(task, args)


def run(task, args):
    """Both steps of one task."""
    choose = args.out / task / "choose"
    final = args.out / task / "final"
    choose.parent.mkdir(parents=True, exist_ok=True)
    head = (CONFIGS / f"{task}.toml").read_text()
    models = (CONFIGS / "models.toml").read_text()
    grid = choose.parent / "choose.toml"
    write(grid, f"seed = {CHOOSING_SEED}\nseeds = 1\n{head}\n{models}\n[grid]\nlr = {RATES}\n")
    call([args.program, "sweep", grid, "--out", choose, "--jobs", args.jobs])
    rates = chosen(choose)
    config = choose.parent / "final.toml"
    lines = "".join(f"per_model.{name}.lr = {rate}\n" for name, rate in rates.items())
    write(config, f"seed = 0\nseeds = {SEEDS}\n{head}\n{models}{lines}")
    if (final / "config.toml").exists():
        call([args.program, "train", "--resume", final, "--jobs", args.jobs])
    else:
        call([args.program, "train", "--config", config, "--out", final, "--jobs", args.jobs])


def chosen(choose):
    """The rate of each model with the highest mean score over the lengths; the lower one of two that are equal."""
    best = {}
    for path in sorted(choose.glob("*/*/result.json")):
        result = json.loads(path.read_text())
        rate = rate_of(result)
        score = sum(scores(result).values())
        name = result["model"]
        if name not in best or (score, -rate) > (best[name][0], -best[name][1]):
            best[name] = (score, rate)
    return {name: rate for name, (_, rate) in best.items()}


def rate_of(result):
    """The learning rate that a run was trained with."""
    config = tomllib.loads(result["config"])
    return config.get("per_model", {}).get(result["model"], {}).get("lr", config["lr"])


def scores(result):
    """The accuracy at each length; nothing where training diverged."""
    return {int(n): a if a is not None else 0.0 for n, a in result["accuracy"].items()}


def write(path, text):
    """A file that is there whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)


def call(command):
    """Run one program to its end; a signal to us is one to it."""
    print("+", *command, file=sys.stderr)
    child = subprocess.Popen([str(c) for c in command])
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda number, _: child.send_signal(number))
    if child.wait() not in (0, 1):
        sys.exit(child.returncode)


if __name__ == "__main__":
    main()
