#!/usr/bin/env python3
"""Train the zoo on one task after another, and write who can do what.

    zoo.py run TASK…  [--out DIR] [--program P] [--jobs N]
    zoo.py table      [--out DIR] [--program P]

`run` takes two steps for each task of configs/zoo/. It trains every model once from seed 100 with each learning rate of
RATES, and keeps the rate with the highest mean score over the lengths; then it trains from seeds 0, 1 and 2 with that
rate. Both steps leave ordinary run directories, DIR/TASK/choose and DIR/TASK/final. The same command goes on where an
earlier one was stopped.

`table` prints the tables of docs/zoo_results.md from what is there: medians and ranges over the seeds, beside what
theory says (scripts/zoo_theory.toml).
"""

import argparse
import json
import pathlib
import re
import signal
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "configs" / "zoo"
RATES = [2e-3, 8e-3]
CHOOSING_SEED = 100
SEEDS = 3
DOES = 0.95


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
    if args.what == "table":
        return table(args)
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


def table(args):
    """All tables, of the tasks that have final runs."""
    theory = tomllib.loads((ROOT / "scripts" / "zoo_theory.toml").read_text())
    groups, state = theory.pop("groups"), theory.pop("state")
    tasks = {name: results(args.out / name / "final") for name in theory}
    tasks = {name: runs for name, runs in tasks.items() if runs}
    models = tomllib.loads((CONFIGS / "models.toml").read_text())["models"]
    says = {task: verdicts(theory[task], groups, models) for task in tasks}
    print("| model | state |", " | ".join(theory[task]["title"] for task in tasks), "|")
    print("|---" * (2 + len(tasks)) + "|")
    for model in models:
        cells = [cell(tasks[task].get(model), says[task][model]) for task in tasks]
        print(f"| {shown(model)} | {state[model.removesuffix('_signed')]} |", " | ".join(cells), "|")
    print()
    for task in tasks:
        print(f"{theory[task]['title']}: {made_by(args, task)}.\\")
    print()
    kinds = {"can and does": [], "can and does not": [], "cannot and does not": [], "cannot and does": []}
    for task, runs in tasks.items():
        for model in models:
            known = says[task][model]
            if model in runs and known:
                does = "does" if right(runs[model]) else "does not"
                kinds[f"{known} and {does}"].append((task, model))
    for kind, found in kinds.items():
        print(f"**{kind[0].upper()}{kind[1:]}** ({len(found)} of {sum(map(len, kinds.values()))})", end="")
        if kind in ("can and does not", "cannot and does"):
            by_task = [(task, [shown(m) for t, m in found if t == task]) for task in tasks]
            said = "; ".join(f"{theory[task]['title']}: {', '.join(names)}" for task, names in by_task if names)
            print(f": {said or 'none'}.\n")
        else:
            print(".\n")
    for task, runs in tasks.items():
        detail(theory[task], runs, models, says[task])


def detail(theory, runs, models, says):
    """One task at every length."""
    lengths = sorted({n for model in runs.values() for run in model for n in scores(run)})
    print(f"### {theory['title']}\n")
    print(f"{' '.join(theory['why'].split())}\n")
    print("| model | theory | learning rate |", " | ".join(map(str, lengths)), "|")
    print("|---" * (3 + len(lengths)) + "|")
    for model in models:
        if model in runs:
            cells = [spread([scores(run)[n] for run in runs[model]]) for n in lengths]
            rate = rate_of(runs[model][0])
            print(f"| {shown(model)} | {says[model] or 'not known'} | {rate} |", " | ".join(cells), "|")
    print()


def results(final):
    """The finished runs of a task, by model."""
    found = {}
    for path in sorted(final.glob("*/result.json")):
        result = json.loads(path.read_text())
        found.setdefault(result["model"], []).append(result)
    return {model: runs for model, runs in found.items() if len(runs) == SEEDS}


def verdicts(theory, groups, models):
    """can, cannot or nothing, of each model."""
    listed = {}
    for word in ("can", "cannot"):
        for name in theory[word]:
            for model in groups.get(name, [name]):
                if model not in models or model in listed:
                    sys.exit(f"scripts/zoo_theory.toml, {theory['title']}: {model} is no model, or is there twice")
                listed[model] = word
    return {model: listed.get(model) for model in models}


def right(runs):
    """Whether a task is solved at eight times the length that it was learned at: the median has an error in 20 or less."""
    return median([scores(run)[max(scores(run))] for run in runs]) >= DOES


def cell(runs, says):
    """The median at the longest length, bold where it is solved; the sign is what theory says."""
    sign = {"can": "✓", "cannot": "✗", None: "?"}[says]
    if runs is None:
        return f"– {sign}"
    value = median([scores(run)[max(scores(run))] for run in runs])
    text = number(value)
    return f"**{text}** {sign}" if right(runs) else f"{text} {sign}"


def spread(values):
    """The median and, where the seeds differ, the range."""
    low, high = number(min(values)), number(max(values))
    return number(median(values)) + ("" if low == high else f" ({low}–{high})")


def number(value):
    """Three digits; 1.000 says that there was no error."""
    return f"{min(value, 0.9994) if value < 1 else 1.0:.3f}"


def median(values):
    return sorted(values)[len(values) // 2]


def shown(model):
    return model.replace("_signed", " [−1, 1]")


def made_by(args, task):
    """Build, processor and day of the runs of a task."""
    lines = (args.out / task / "final" / "made_by.txt").read_text().splitlines()
    found = [re.match(r"(\S+?)T.*\((commit [^,]+), source (\w+)\); (.*); kernels (.*)", line).groups() for line in lines]
    if len({source for _, _, source, _, _ in found}) > 1:
        sys.exit(f"{task}: its runs are of several builds")
    day, commit, _, processor, kernels = found[0]
    return f"{commit}, {processor}, {kernels}, {day}"


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
