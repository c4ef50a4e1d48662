#!/usr/bin/env python3
"""Brackets that cross far apart: do the models of docs/zoo_results.md that recall Dyck words notice them?

    scripts/crossing.py run [--quick]    ask the runs of `scripts/zoo.py run dyck`; a quarter of a core-hour
    scripts/crossing.py table [--write]  print the table, or put it into docs/zoo_results.md
    scripts/crossing.py mistakes         where the words of training go wrong, of 4,000 drawn; a second

A pair is a word w = X1 Y1 Z X2 Y2 Z and a word v = X1 Y2 Z X2 Y1 Z, where X1 = ( U [ U, X2 = [ U ( U, Y1 = ) V ] and Y2 = ] V ),
with any two types of brackets, and U, V and Z are runs of N tokens of short pairs such as [](){}. In v every bracket is
closed in its order, in w no closing bracket of Y1 and Y2 fits; each bracket is there as often, and each place of w has the neighbours of one of v.
A model is right about a pair if it says so at the end of both. How many pairs of PAIRS goes to
docs/zoo_results/crossing/pairs.tsv, a line a run.

    scripts/zoo.py run dyck && scripts/crossing.py run && scripts/crossing.py table --write
"""
import json
import os
import random
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor

sys.dont_write_bytecode = True
import zoo
from marks import table
from results import Results, build

KEPT = zoo.KEPT / "crossing" / "pairs.tsv"
OPEN, CLOSE = "([{", ")]}"
# The lengths of the runs between the brackets that cross, and the pairs of each.
RUNS = [0, 2, 4, 8]
PAIRS = 10


def main():
    args = zoo.asked_for(__doc__, ["run", "table", "mistakes"]).parse_args()
    if args.what == "run":
        run(args.out / "dyck" / "final", args.program, args.quick)
    elif args.what == "mistakes":
        mistakes(args.program)
    else:
        zoo.show("crossing.py", page(), args.write)


def words(rng, n):
    """The two words of a pair: the one with crossing brackets, and the one without."""
    a, b = rng.sample(range(len(OPEN)), 2)
    u, v, z = ("".join(OPEN[i] + CLOSE[i] for i in rng.choices(range(len(OPEN)), k=n // 2)) for _ in range(3))
    begins = [OPEN[a] + u + OPEN[b] + u, OPEN[b] + u + OPEN[a] + u]
    ends = [CLOSE[a] + v + CLOSE[b], CLOSE[b] + v + CLOSE[a]]
    return begins[0] + ends[0] + z + begins[1] + ends[1] + z, begins[0] + ends[1] + z + begins[1] + ends[0] + z


def run(path, program, quick):
    """Ask every run at `path`, some side by side; in a small version two of them."""
    if not Results.finished(path):
        sys.exit(f"{path} has not all its runs; scripts/zoo.py run dyck makes them")
    results = Results(path)
    with open(path / "config.toml", "rb") as f:
        models = tomllib.load(f)["models"]
    runs = sorted(results.runs, key=lambda r: (models.index(r["model"]), r["seed"]))
    runs = runs[:2] if quick else runs
    # A run that diverged is right about none, and may have no weights.
    of = lambda r: right(path / f"{r['model']}-seed{r['seed']}", program) if r.get("accuracy") else [0] * len(RUNS)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        lines = pool.map(lambda r: [r["model"], r["seed"], *of(r)], runs)
        text = [f"# {build(path, results.made_by())}", "\t".join(["model", "seed", *map(str, RUNS)])]
        for n, line in enumerate(lines, 1):
            print(f"{n} of {len(runs)}: {' '.join(map(str, line))}", file=sys.stderr, flush=True)
            text.append("\t".join(map(str, line)))
    zoo.keep(KEPT, "\n".join(text), quick)


def right(run, program):
    """About how many pairs a run is right, for each length of the runs between; every run is asked about the same pairs."""
    rng, counts = random.Random(0), []
    for n in RUNS:
        pairs = [words(rng, n) for _ in range(PAIRS)]
        counts.append(sum(all(answered(run, program, word) for word in pair) for pair in pairs))
    return counts


def answered(run, program, word):
    """Whether a run's answer at the end of a word is right."""
    page = run / "crossing.html"
    subprocess.run([program, "inspect", "--checkpoint", run, "--input", " ".join(word), "--out", page, "--json"], check=True, stdout=subprocess.DEVNULL)
    data = json.loads(page.with_suffix(".json").read_text())
    for ending in ".html", ".json", ".safetensors":
        page.with_suffix(ending).unlink()
    return data["runs"][0]["said"][-1]["class"] == data["targets"][-1]


def mistakes(program):
    """How far the first bracket that does not fit stands behind the one that it would have to close, in drawn words."""
    flags = "dyck --show 4000 --types 3 --depth 3 --train-len 16".split()
    said = subprocess.run([program, *flags], check=True, capture_output=True, text=True).stdout
    drawn = [word for word in map(str.split, said.splitlines()) if word and set(word) <= set(OPEN + CLOSE)]
    none, beside, apart = 0, 0, 0
    for word in drawn:
        opened = []
        for at, bracket in enumerate(word):
            if bracket in OPEN:
                opened.append(at)
                continue
            if not opened:
                none += 1
                break
            begin = opened.pop()
            if OPEN.index(word[begin]) != CLOSE.index(bracket):
                beside, apart = (beside + 1, apart) if at == begin + 1 else (beside, apart + 1)
                break
    print(f"of {len(drawn)} words {none + beside + apart} have a mistake: {none} close nothing, {beside} right behind an opening bracket, {apart} further on")


def page():
    """For each model how many pairs of all seeds it is right about, beside what theory says of Dyck words."""
    head, names, *lines = KEPT.read_text().splitlines()
    theory, groups, _ = zoo.read_theory()
    models = list(dict.fromkeys(line.split("\t")[0] for line in lines))
    says = zoo.verdicts(theory["dyck"], groups, models)
    rows = []
    for model in models:
        of = [list(map(int, line.split("\t")[2:])) for line in lines if line.split("\t")[0] == model]
        rows.append([zoo.shown(model), says[model] or "not known", *map(sum, zip(*of))])
    seeds = len(lines) // len(models)
    head_row = ["model", "theory", *(f"{8 + 8 * int(n)} tokens" for n in names.split("\t")[2:])]
    return f"{table(head_row, rows)}\n\n*`scripts/crossing.py`, of {PAIRS * seeds} pairs; {head.removeprefix('# ')}.*\n"


if __name__ == "__main__":
    main()
