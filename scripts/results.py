"""The results of runs of tapezoo, as numbers, cells of a table, and figures."""
import json
import math
import os
import re
import shutil
import statistics
import struct
import subprocess
import tempfile
import tomllib
from array import array
from glob import escape, glob

NAMES = {
    "lstm": "LSTM", "quasi_lstm": "quasi-LSTM", "lru": "LRU", "linear_transformer": "linear transformer", "gpt": "GPT",
    "delta_net": "DeltaNet", "mamba": "Mamba", "slstm": "sLSTM", "mlstm": "mLSTM", "delta_net_signed": "DeltaNet [-1, 1]",
    "mamba_signed": "Mamba [-1, 1]", "delta_product2": "DeltaProduct, n = 2", "delta_product4": "DeltaProduct, n = 4",
    "delta_product": "DeltaProduct", "gated_delta_net": "Gated DeltaNet", "gla": "GLA", "retnet": "RetNet", "hgrn2": "HGRN2",
    "mamba2": "Mamba-2", "mamba3": "Mamba-3", "kda": "KDA", "rwkv7": "RWKV-7", "fox": "FoX", "path": "PaTH", "hopfield": "Hopfield",
    "ttt": "TTT-linear", "titans": "Titans", "gsa": "GSA", "hedgehog": "Hedgehog", "transnormer": "TransNormer",
    "lightnet": "LightNet", "mom": "MoM", "s4d": "S4D", "lssl": "LSSL", "lmu": "LMU", "seqboat": "SeqBoat",
}


class Results:
    """The runs in one directory of `--out`."""

    def __init__(self, path):
        self.path = path
        with open(f"{path}/results.json") as f:
            self.runs = json.load(f)["runs"]

    @staticmethod
    def finished(path):
        """Whether every model was trained from every seed: results.json grows while they are."""
        if not os.path.exists(f"{path}/results.json"):
            return False
        with open(f"{path}/config.toml", "rb") as f:
            config = tomllib.load(f)
        return len(Results(path).runs) == len(config["models"]) * config["seeds"]

    def made_by(self):
        with open(f"{self.path}/made_by.txt") as f:
            return f.read().splitlines()

    def origin(self, several=False):
        """The commit, the processor and the days of these runs; `several`: the commits, if they were resumed by other builds."""
        return origin(self.path, self.made_by(), several)

    def evaluations(self, run):
        """The lines of a run's metrics that have scores, the last of each step."""
        with open(f"{self.path}/{run['model']}-seed{run['seed']}/metrics.jsonl") as f:
            return list({line["step"]: line for line in map(json.loads, f) if "accuracy" in line}.values())

    def values(self, model, metric, length, step=None):
        """The values of all seeds, in their order: at the end, or at a step with an evaluation. A run that diverged counts as 0
        where it has none."""
        found = []
        for run in sorted((r for r in self.runs if r["model"] == model), key=lambda r: r["seed"]):
            of = run
            if step is not None and step != run["steps"]:
                of = next((line for line in self.evaluations(run) if line["step"] == step), {})
            if str(length) in of.get(metric, {}):
                found.append(of[metric][str(length)])
            elif not run.get("accuracy"):
                found.append(0.0)
        return found

    def keep(self, file):
        """Write what tables need of these runs into a file of the repository, for runs that take hours."""
        runs = [{**{key: run[key] for key in run if key != "kernels"}, "evaluations": self.evaluations(run)} for run in self.runs]
        os.makedirs(os.path.dirname(file), exist_ok=True)
        with open(f"{file}.tmp", "w") as f:
            json.dump({"made_by": self.made_by(), "runs": runs}, f, indent=1)
            f.write("\n")
        os.replace(f"{file}.tmp", file)


class SoFar(Results):
    """The runs in a directory as far as they got: each with the scores of its last evaluation, and the step of it."""

    def __init__(self, path):
        self.path = path
        with open(f"{path}/config.toml", "rb") as f:
            config = tomllib.load(f)
        begun = [{"model": m, "seed": config["seed"] + i} for m in config["models"] for i in range(config["seeds"])]
        self.runs = [{**run, **scores[-1], "steps": scores[-1]["step"]} for run in begun if (scores := self.evaluations(run))]

    def evaluations(self, run):
        if not os.path.exists(f"{self.path}/{run['model']}-seed{run['seed']}/metrics.jsonl"):
            return []
        return super().evaluations(run)


class Kept(Results):
    """The runs in a file that `keep` wrote."""

    def __init__(self, file):
        self.path = file
        with open(file) as f:
            self.data = json.load(f)
        self.runs = self.data["runs"]

    def made_by(self):
        return self.data["made_by"]

    def evaluations(self, run):
        return run["evaluations"]


def origin(name, made_by, several=False):
    """Commit, processor with kernels, and days of the lines of made_by.txt. Builds of the same source are one, and others are
    refused, or with `several` all named."""
    found = [re.match(r"(\S+?)T.*\((?:commit ([^,]+), )?source (\w+)\); (.*); kernels (.*)", line).groups() for line in made_by]
    if len({source for _, _, source, _, _ in found}) > 1 and not several:
        raise SystemExit("\n  ".join([f"{name} would mix builds; run again those that are older:", *made_by]))
    commits = {source: commit or "unknown" for _, commit, source, _, _ in reversed(found)}
    commit, days = " and ".join(reversed(commits.values())), sorted({day for day, *_ in found})
    processors = sorted({f"{processor}, {kernels}" for *_, processor, kernels in found})
    return commit, " and ".join(processors), days[0] + (f" to {days[-1]}" if days[1:] else "")


def build(name, made_by):
    """Where all of a table is from."""
    return f"commit {', '.join(origin(name, made_by))}"


def score(x, digits=3):
    """A score, rounded; only 1 itself reads 1.000."""
    text = f"{x:.{digits}f}"
    return text if x >= 1 or float(text) < 1 else f"0.{'9' * digits}"


def spread(values):
    """Mean, and below it minimum and maximum."""
    if len(values) < 2:
        return each(values)
    return f"{score(statistics.mean(values))}<br>{score(min(values), 2)}–{score(max(values), 2)}"


def each(values):
    return ", ".join(map(score, values)) or "–"


def figure(program, runs, models, ending, title, names, path):
    """The figure of `tapezoo report` whose file name ends so, of these models of the runs, with a title and names of ours."""
    with tempfile.TemporaryDirectory() as scratch:
        for model in models:
            for run in sum((glob(f"{escape(of)}/{model}-seed*") for of in runs), []):
                shutil.copytree(run, f"{scratch}/{os.path.basename(run)}")
        shutil.copy(f"{runs[0]}/config.toml", scratch)
        write(path, reported(program, scratch, ending, title, {model: names.get(model, model) for model in models}))


def reported(program, scratch, ending, title, names):
    """The figure of the runs in a directory, with this title and these names of its models."""
    subprocess.run([program, "report", scratch, "--out", f"{scratch}/report"], check=True, stdout=subprocess.DEVNULL)
    found = glob(f"{escape(scratch)}/report/*-{ending}.svg")
    if len(found) != 1:
        raise SystemExit(f"'{title}': expected one figure *-{ending}.svg, found {len(found)}")
    with open(found[0]) as f:
        svg = f.read()
    old = re.search("<title>(.*?)</title>", svg)[1]
    svg = svg.replace(f">{old}<", f">{title}<")
    # The longest first: a name can begin with another.
    for model in sorted(names, key=len, reverse=True):
        svg = re.sub(rf">{model}(?=<| at )", f">{names[model]}", svg)
    return svg


def curves(program, rows, x_label, title, path):
    """The figure of `tapezoo report` of numbers that are of no one run: rows {name: {x: [the number of each seed]}}, x whole
    numbers. The program takes them for evaluations at lengths of x."""
    if not os.path.exists(program):
        raise SystemExit(f"{program}: no such program to draw with; cargo build --release --bin tapezoo, or set TAPEZOO")
    # As long as the names, which makes room for them, and of characters that a model's name may have.
    ids = {re.sub(r"\W", "_", name): name for name in rows}
    xs = sorted({int(x) for row in rows.values() for x in row})
    with tempfile.TemporaryDirectory() as scratch:
        begin = "train --task parity --models lstm --steps 1 --seeds 1 --eval-every 0"
        subprocess.run([program, *begin.split(), "--out", f"{scratch}/begun"], check=True, stdout=subprocess.DEVNULL)
        with open(f"{scratch}/begun/config.toml") as f:
            config = f.read().partition("\n[per_model")[0]
        config = re.sub("(?m)^models = .*", f"models = {list(ids)}", re.sub("(?m)^eval_lens = .*", f"eval_lens = {xs}", config))
        shutil.rmtree(f"{scratch}/begun")
        write(f"{scratch}/config.toml", config + "".join(f'\n[per_model.{id}]\nmixer = "lstm"\n' for id in ids))
        for id, name in ids.items():
            for seed, numbers in enumerate(zip(*rows[name].values())):
                os.makedirs(f"{scratch}/{id}-seed{seed}")
                scores = {"step": 1, "accuracy": dict(zip(rows[name], numbers))}
                write(f"{scratch}/{id}-seed{seed}/metrics.jsonl", json.dumps(scores) + "\n")
        svg = reported(program, scratch, "accuracy", title, ids)
    # The lines of a guess and of the length of training are parity's.
    svg = re.sub('<line class="(guess|trained)"[^>]*></line>|<text class="[^"]*"[^>]*>(guessing|trained here)</text>', "", svg)
    write(path, svg.replace(">evaluation length", f">{x_label}").replace(" at length ", f", {x_label} "))


def write(path, text):
    with open(path, "w") as f:
        f.write(text)


class Page:
    """A page of `inspect` as data: `said` of each run, and tensors by name."""

    def __init__(self, program, args, scratch):
        os.makedirs(os.path.dirname(scratch), exist_ok=True)
        self.args = " ".join(args)
        subprocess.run([program, "inspect", *args, "--out", f"{scratch}.html", "--json"], check=True, stdout=subprocess.DEVNULL)
        with open(f"{scratch}.json") as f:
            self.data = json.load(f)
        with open(f"{scratch}.safetensors", "rb") as f:
            self.bytes = f.read()
        size = struct.unpack("<Q", self.bytes[:8])[0]
        self.about, self.base = json.loads(self.bytes[8 : 8 + size]), 8 + size

    def tensor(self, name):
        """Rows of numbers, one for each step."""
        about = self.about[name]
        begin, end = about["data_offsets"]
        flat = array("f", self.bytes[self.base + begin : self.base + end])
        width = math.prod(about["shape"][1:])
        return [flat[i : i + width] for i in range(0, len(flat), width)]

    def accuracy(self, run=0):
        """(accuracy, length) of the model that was trained for the page."""
        said = re.search(r"accuracy ([\d.]+) at length (\d+)", self.data["runs"][run]["about"])
        return said[1], said[2]
