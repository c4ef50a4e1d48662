#!/usr/bin/env python3
"""Train the zoo on one task after another, and write who can do what.

    scripts/zoo.py run [TASK…] [--quick]     train every model; hours for all tasks
    scripts/zoo.py table [--write]           print the tables, or put them into docs/zoo_results.md

`run` takes two steps for each task of configs/zoo/. It trains every model once from seed 100 with each learning rate of
RATES, and keeps the rate with the highest mean accuracy over the lengths; then it trains from seeds 0, 1 and 2 with that
rate. Both steps leave ordinary run directories, OUT/TASK/choose and OUT/TASK/final. The same command goes on where an
earlier one was stopped or killed. When a task has all its runs, their accuracies go to docs/zoo_results/TASK.tsv; of Dyck,
the recalls. Of in-context languages the total variation distances go to docs/zoo_results/languages/tvd.tsv.

`table` has the tasks with such a file, beside what theory says (scripts/zoo_theory.toml): medians and ranges over the
seeds. A run that diverged counts as an accuracy of 0.

    scripts/zoo.py run parity s3 && scripts/zoo.py table --write
"""
import argparse
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

sys.dont_write_bytecode = True
from marks import insert, table
from results import NAMES, Results, build, curves, score

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "configs" / "zoo"
KEPT = ROOT / "docs" / "zoo_results"
TASKS = sorted(p.stem for p in CONFIGS.glob("*.toml") if p.stem != "models")
RATES = [2e-3, 8e-3]
CHOOSING_SEED = 100
SEEDS = 3
# Of Dyck's targets six in seven are 0: its recall is the mean over both classes.
SCORES = {"dyck": "recall"}
# A second score, and its file.
SECOND = {"icll": ("tvd", KEPT / "languages" / "tvd.tsv")}
# What a run that diverged has, at every length.
WORST = {"tvd": 1.0}
# A task is solved at eight times the length that it was learned at, if the median has an error in 20 or less there.
DOES = 0.95
# The figures: of each kind of model one or two.
DRAWN = {
    "parity": ["lstm", "mamba", "mamba_signed", "delta_net", "delta_net_signed", "mamba3", "path", "gpt"],
    "s5_swaps": ["lstm", "slstm", "mamba_signed", "delta_net_signed", "delta_product_signed", "rwkv7", "rwkv7_signed", "gpt"],
    "mqar": ["lstm", "mamba", "mamba2", "mlstm", "hgrn2", "delta_net", "gpt", "hopfield"],
}
FIGURE = "figures/zoo_{}.svg"
SIGNS = {"can": "✓", "cannot": "✗", None: "?"}


def main():
    parser = asked_for(__doc__, ["run", "table"], trains=True)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"of run: {', '.join(TASKS)} [default: all]")
    args = parser.parse_args()
    for task in args.tasks:
        if task not in TASKS:
            parser.error(f"{task}: no such task; configs/zoo has {', '.join(TASKS)}")
    if args.what == "run":
        if args.write:
            parser.error("--write is of table")
        for task in args.tasks or TASKS:
            run(task, args)
    elif args.tasks or args.quick:
        parser.error("table takes no tasks and no --quick: it has what docs/zoo_results/ has")
    else:
        if args.write:
            draw(args.program)
        show("zoo.py", page(), args.write)
        show("zoo.py, task by task,", details(), args.write)


def asked_for(doc, what, out="zoo", program=("TAPEZOO", "tapezoo"), trains=False):
    """The arguments of this script and of its sisters: recall.py, crossing.py, swaps.py and languages.py."""
    variable, path = program
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=what)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / out, help=f"of run: where the runs are [default: runs/{out}]")
    parser.add_argument("--program", default=os.environ.get(variable) or ROOT / "target" / "release" / path,
                        help=f"the program [default: ${variable}, else target/release/{path}]")
    parser.add_argument("--write", action="store_true", help="of table: into docs/zoo_results.md")
    small = "20 steps of one seed" if trains else "print what a few runs give, as those of zoo.py run --quick"
    parser.add_argument("--quick", action="store_true", help=f"of run: {small}, to see that it works; docs/ keeps nothing of it")
    if trains:
        parser.add_argument("--jobs", default="2", help="how many runs go side by side [default: 2]")
    return parser


def show(script, text, write):
    """Print a part of docs/zoo_results.md, or put it between the marks of its script."""
    if write:
        insert(f"{KEPT}.md", script, text)
    else:
        print(text)


def keep(file, text, quick):
    """Write a file of docs/zoo_results/; of a small version print it."""
    if quick:
        return print(text)
    file.parent.mkdir(parents=True, exist_ok=True)
    write(file, text + "\n")


def run(task, args):
    """Both steps of one task."""
    head, models = ((CONFIGS / f"{name}.toml").read_text() for name in (task, "models"))
    train(head, models, args.out / task, KEPT / f"{task}.tsv", args, SCORES.get(task, "accuracy"), SECOND.get(task))


def train(head, models, at, file, args, what="accuracy", second=None):
    """Choose the rates of the models on the task that `head` sets, train them, and keep their scores in a file; a second
    score, by which nothing is chosen, in its own."""
    at.mkdir(parents=True, exist_ok=True)
    if args.quick:
        head = re.sub(r"(?m)^(steps|curriculum|eval_batches) = .*\n", "", head) + "steps = 20\neval_batches = 1\n"
    grid = at / "choose.toml"
    write(grid, f"seed = {CHOOSING_SEED}\nseeds = 1\n{head}\n{models}\n[grid]\nlr = {RATES}\n")
    points = [at / "choose" / f"lr={rate}" for rate in RATES]
    call([args.program, "sweep", grid, "--out", at / "choose", "--jobs", args.jobs], points)
    rates = chosen({rate: Results(point).runs for rate, point in zip(RATES, points)}, what)
    lines = "".join(f"per_model.{name}.lr = {rate}\n" for name, rate in rates.items())
    text = f"seed = 0\nseeds = {1 if args.quick else SEEDS}\n{head}\n{models}{lines}"
    config, final = at / "final.toml", at / "final"
    if (final / "config.toml").exists():
        if tomllib.loads(config.read_text()) != tomllib.loads(text):
            sys.exit(f"{final} has runs of other settings, see {config}; give another --out, or delete both")
        call([args.program, "train", "--resume", final, "--jobs", args.jobs], [final])
    else:
        write(config, text)
        call([args.program, "train", "--config", config, "--out", final, "--jobs", args.jobs], [final])
    for what, file in [(what, file), *([second] if second else [])]:
        keep(file, kept(final, what), args.quick)


def kept(path, what):
    """The text that the tables need of the runs in a directory: a line a run, with its score at each length."""
    with open(path / "config.toml", "rb") as f:
        config = tomllib.load(f)
    results, lengths = Results(path), config["eval_lens"]
    lines = [f"# {build(path, results.made_by())}", "\t".join(["model", "learning rate", "seed", *map(str, lengths)])]
    for model in config["models"]:
        for run in sorted((r for r in results.runs if r["model"] == model), key=lambda r: r["seed"]):
            scores = [run.get(what, {}).get(str(n), WORST.get(what, 0.0)) for n in lengths]
            lines.append("\t".join(map(str, [model, config["per_model"][model]["lr"], run["seed"], *scores])))
    return "\n".join(lines)


def chosen(runs, what="accuracy"):
    """The learning rate of each model, from the runs at each rate: the one with the highest mean score; of equals the lower."""
    best = {}
    for rate in sorted(runs):
        for run in runs[rate]:
            mean = statistics.mean(run.get(what, {}).values() or [0.0])
            if mean > best.get(run["model"], (-1.0,))[0]:
                best[run["model"]] = mean, rate
    return {model: rate for model, (_, rate) in best.items()}


class Learned:
    """The results of the models on one task."""

    def __init__(self, text, theory, groups, models, task=""):
        """Read the text of a file of docs/zoo_results/."""
        self.task = task
        head, names, *lines = text.splitlines()
        self.models, self.lengths, self.title, self.why = models, names.split("\t")[3:], theory["title"], theory["why"]
        self.build, self.says = head.removeprefix("# "), verdicts(theory, groups, models)
        self.rates, self.runs = {}, {model: [] for model in models}
        for model, rate, _, *accuracy in (line.split("\t") for line in lines):
            self.rates[model] = float(rate)
            self.runs[model].append(dict(zip(self.lengths, map(float, accuracy))))

    def values(self, model, length):
        return [run[length] for run in self.runs[model]]

    def median(self, model, length=None):
        """The median over the seeds, at the longest length if none is given."""
        return statistics.median(self.values(model, length or self.lengths[-1]))

    def does(self, model):
        return self.median(model) >= DOES

    def cell(self, model):
        """The median, bold where the task is solved; the sign is what theory says."""
        text = score(self.median(model))
        return f"{f'**{text}**' if self.does(model) else text} {SIGNS[self.says[model]]}"

    def kind(self, known, does):
        return [m for m in self.models if self.says[m] == known and self.does(m) == does]

    def names(self, models):
        """The names of models with the median of each, the highest first."""
        return ", ".join(f"{shown(m)} {score(self.median(m))}" for m in sorted(models, key=self.median, reverse=True))

    def detail(self):
        """The task at every length."""
        rows = [[shown(m), self.says[m] or "not known", self.rates[m], *(spread(self.values(m, n)) for n in self.lengths)] for m in self.models]
        why = textwrap.fill(" ".join(self.why.split()), 128, break_on_hyphens=False)
        text = table(["model", "theory", "learning rate", *self.lengths], rows)
        return f"### {self.title}\n\n{why}\n\n{text}\n\n*`scripts/zoo.py`; {self.build}.*"


def learned():
    """The tasks that have all their runs, the models, and the sizes of their states."""
    theory, groups, state = read_theory()
    models = tomllib.loads((CONFIGS / "models.toml").read_text())["models"]
    files = {task: KEPT / f"{task}.tsv" for task in theory}
    return [Learned(file.read_text(), theory[task], groups, models, task) for task, file in files.items() if file.exists()], models, state


def details():
    """A table for each task."""
    return "\n\n".join(t.detail() for t in learned()[0]) + "\n"


def draw(program):
    """The figures over length, of tasks that tell kinds of models apart."""
    for t in learned()[0]:
        if t.task in DRAWN:
            rows = {shown(m): {n: t.values(m, n) for n in t.lengths} for m in DRAWN[t.task]}
            curves(program, rows, "length", f"{t.title[0].upper()}{t.title[1:]}: accuracy over length", ROOT / "docs" / FIGURE.format(t.task))


def page():
    """The table over all tasks, which models are of which kind, and figures."""
    tasks, models, state = learned()
    parts = [table(["model", "state", *(t.title for t in tasks)], [[shown(m), state[base(m)], *(t.cell(m) for t in tasks)] for m in models])]
    known = sum(word is not None for t in tasks for word in t.says.values())
    for word, does in ("can", True), ("can", False), ("cannot", True), ("cannot", False):
        found = [(t, t.kind(word, does)) for t in tasks]
        if word == "cannot" and not does:
            said = [f"- {t.title}: {below(t, models)}." for t, models in found if models]
        else:
            said = [f"- {t.title}: {t.names(models)}." for t, models in found if models]
        title = f"**{word.capitalize()} and {'does' if does else 'does not'}**, {sum(len(models) for _, models in found)} of {known}:"
        parts.append("\n".join([title, "", *(said or ["- none."])]))
    parts.append("\n".join(f"![{t.title}: accuracy over length]({FIGURE.format(t.task)})" for t in tasks if t.task in DRAWN))
    parts.append(f"*`scripts/zoo.py`; {'; '.join(f'{t.title}: {t.build}' for t in tasks)}.*")
    return "\n\n".join(parts) + "\n"


def below(task, models):
    """How close the models come that do not solve a task: the best of them, and how many learned it at the shortest length."""
    short = task.lengths[0]
    learned = sum(task.median(m, short) >= DOES for m in models)
    return f"{len(models)}, the best of them {task.names([max(models, key=task.median)])}; with {DOES} and more at {short}: {learned}"


def read_theory():
    """The tasks, the groups of models and the sizes of states of zoo_theory.toml."""
    theory = tomllib.loads((ROOT / "scripts" / "zoo_theory.toml").read_text())
    groups, state = theory.pop("groups"), theory.pop("state")
    return theory, groups, state


def verdicts(theory, groups, models):
    """{model: 'can', 'cannot' or None}"""
    listed = {}
    for word in ("can", "cannot"):
        for name in theory[word]:
            for model in groups.get(name, [name]):
                if model not in models or model in listed:
                    sys.exit(f"scripts/zoo_theory.toml, {theory['title']}: {model} is no model, or is there twice")
                listed[model] = word
    return {model: listed.get(model) for model in models}


def spread(values):
    """The median and, where the seeds differ, the range."""
    low, high = score(min(values)), score(max(values))
    return score(statistics.median(values)) + ("" if low == high else f" ({low}–{high})")


def base(model):
    return model.removesuffix("_signed")


def shown(model):
    return NAMES[base(model)] + (" [-1, 1]" if model != base(model) else "")


def check():
    """The check of reproduce.sh --check: the theory names only models and tasks that exist, and its rules hold."""
    wrong = []

    def same(what, found, expected):
        if found != expected:
            wrong.append(f"scripts/zoo.py: {what}: {found}, expected {expected}")

    theory, groups, state = read_theory()
    models = tomllib.loads((CONFIGS / "models.toml").read_text())["models"]
    same("tasks of theory", sorted(theory), TASKS)
    same("models with a state", sorted(state), sorted({base(m) for m in models}))
    same("models without a name", [m for m in models if base(m) not in NAMES], [])
    for of in theory.values():
        verdicts(of, groups, models)
    runs = lambda *all_: [{"model": m, "accuracy": a} for m, a in zip("xyz", all_)]
    same("rates", chosen({8e-3: runs({"8": 0.5}, {"8": 0.9}, {"8": 0.1}), 2e-3: runs({"8": 0.5}, {"8": 0.8}, {})}), {"x": 2e-3, "y": 8e-3, "z": 8e-3})
    recall = {8e-3: [{"model": "x", "accuracy": {"8": 0.9}, "recall": {"8": 0.5}}], 2e-3: [{"model": "x", "accuracy": {"8": 0.8}, "recall": {"8": 0.6}}]}
    same("rates by recall", chosen(recall, "recall"), {"x": 2e-3})
    same("a verdict", verdicts({"title": "t", "can": ["g"], "cannot": ["z"]}, {"g": ["x"]}, "xyz"), {"x": "can", "y": None, "z": "cannot"})
    same("a spread", spread([1.0, 0.99996, 0.25]), "0.999 (0.250–1.000)")
    same("a name", shown("delta_net_signed"), NAMES["delta_net_signed"])
    lines = [("x", 1.0, 0.95), ("x", 1.0, 0.95), ("x", 0.0, 0.0), ("y", 0.0, 0.0), ("y", 0.0, 0.0), ("y", 0.5, 1.0)]
    text = "\n".join(["# of a build", "model\tlearning rate\tseed\t8\t64", *(f"{m}\t0.002\t0\t{a}\t{b}" for m, a, b in lines)])
    of = Learned(text, {"title": "t", "why": "", "can": ["x"], "cannot": []}, {}, ["x", "y"])
    same("cells", [of.cell("x"), of.cell("y"), of.build], ["**0.950** ✓", "0.000 ?", "of a build"])
    return wrong


def write(path, text):
    """A file that is there whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)


def call(command, makes):
    """Run tapezoo until the run directories that it makes have all their runs; some may have diverged. SIGTERM goes to it as
    well. SIGINT is left to it, as a terminal sends that to both."""
    command = [str(word) for word in command]
    if not shutil.which(command[0]):
        sys.exit(f"{command[0]}: no such program; build it with cargo, or name one by --program")
    print("+", *command, file=sys.stderr, flush=True)
    child = subprocess.Popen(command)
    before = signal.signal(signal.SIGTERM, lambda number, _: child.send_signal(number)), signal.signal(signal.SIGINT, signal.SIG_IGN)
    status = child.wait()
    signal.signal(signal.SIGTERM, before[0])
    signal.signal(signal.SIGINT, before[1])
    # 3: runs that diverged.
    if status not in (0, 1, 3) or not all(map(Results.finished, makes)):
        sys.exit(status if status > 0 else 1)


if __name__ == "__main__":
    main()
