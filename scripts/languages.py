#!/usr/bin/env python3
"""In-context languages with n-gram heads and without them: how often the likeliest symbol is allowed, and how far off the
probabilities are.

    scripts/languages.py run [--quick]      train the models of MODELS with heads
    scripts/languages.py table [--write]    print the table, or put it into docs/zoo_results.md

The models without heads are those of `scripts/zoo.py run icll`; those with heads have `model.ngram = 3`, which adds 25,152
parameters to the 90,000, and all else the same. As there, the learning rate is chosen on a seed that is not reported, and the
same command goes on where an earlier one was stopped. The scores go to docs/zoo_results/languages/.

Below the models stand those who learn nothing: n-grams, which say what followed the last n symbols of this sequence before,
and fall back to fewer where these are new. They are computed here, on strings of automata that this script draws.

    scripts/zoo.py run icll && scripts/languages.py run && scripts/languages.py table --write
"""
import random
import re
import sys
import tomllib
from collections import Counter, defaultdict

sys.dont_write_bytecode = True
import zoo
from marks import table

KEPT = zoo.KEPT / "languages"
MODELS = [
    "lstm", "quasi_lstm", "lru", "mamba", "linear_transformer", "mlstm", "gla", "retnet", "delta_net", "gated_delta_net", "rwkv7",
    "gpt", "fox",
]
HEADS = 3
# How many sequences the n-grams are asked about: their accuracy is sure to 0.003 then, a standard deviation.
SEQUENCES = 1000


def main():
    args = zoo.asked_for(__doc__, ["run", "table"], trains=True).parse_args()
    if args.what == "table":
        return zoo.show("languages.py", page(), args.write)
    head, models = ((zoo.CONFIGS / f"{name}.toml").read_text() for name in ("icll", "models"))
    second = "tvd", KEPT / "heads-tvd.tsv"
    zoo.train(f"{head}model.ngram = {HEADS}\n", only(models), args.out / "icll-heads", KEPT / "heads.tsv", args, second=second)


def only(models):
    """The settings of MODELS out of those of all models."""
    models = re.sub(r"(?s)^models = \[.*?\n\]", f"models = {MODELS}".replace("'", '"'), models, flags=re.M)
    return re.sub(r"(?m)^per_model\.(\w+)\..*\n", lambda line: line[0] if line[1] in MODELS else "", models)


def draw(rng, letters, nodes, edges, **_):
    """A random automaton, as src/tasks/icll.rs says: of each state the letters that may follow, and the state behind each."""
    n, a = rng.randint(4, nodes), rng.randint(4, letters)
    alphabet = rng.sample(range(letters), a)
    states = []
    for state in range(n):
        e = rng.randint(1, edges)
        states.append(dict(zip(rng.sample(alphabet, e), rng.sample([s for s in range(n) if s != state], e))))
    return states


def walk(rng, automaton, string, length):
    """The strings of a sequence: (symbol, the letters that were allowed); of a separator (None, None)."""
    found = []
    while len(found) <= length:
        state = 0
        for _ in range(rng.randint(1, string)):
            letter = rng.choice(list(automaton[state]))
            found.append((letter, list(automaton[state])))
            state = automaton[state][letter]
        found.append((None, None))
    return found[: length + 1]


class NGram:
    """What followed the last n symbols, each time that they were there before; of fewer where they are new. The start of a
    string counts as a symbol, and none reaches behind it."""

    def __init__(self, n, letters):
        self.n, self.letters, self.seen = n, letters, defaultdict(Counter)
        self.last = [None]

    def says(self):
        """The probability of each letter."""
        for n in range(min(self.n, len(self.last)), -1, -1):
            counts = self.seen[tuple(self.last[len(self.last) - n:])]
            if counts:
                return {letter: count / counts.total() for letter, count in counts.items()}
        return {letter: 1 / self.letters for letter in range(self.letters)}

    def goes_on(self, symbol):
        if symbol is None:
            self.last = [None]
            return
        for n in range(min(self.n, len(self.last)) + 1):
            self.seen[tuple(self.last[len(self.last) - n:])][symbol] += 1
        self.last.append(symbol)


def scores(n, lengths, task, sequences):
    """(accuracy, distance) of who knows what followed the last n symbols, at each length: over the first so many tokens of the
    same sequences."""
    rng = random.Random(0)
    totals = {length: [0, 0, 0.0] for length in lengths}
    for i in range(sequences):
        if i % 100 == 0 and sequences > 100:
            print(f"after {n} symbols: {i} of {sequences} sequences", end="\r", file=sys.stderr, flush=True)
        gram = NGram(n, task["letters"])
        sequence = walk(rng, draw(rng, **task), task["string"], max(lengths))
        gram.goes_on(sequence[0][0])
        for t, (symbol, allowed) in enumerate(sequence[1:]):
            if symbol is not None:
                p = gram.says()
                # Of letters that are equally likely the first, as an argmax has it.
                best = min(p, key=lambda letter: (-p[letter], letter))
                # ½ Σ |p − p*|, where p* is the same for each that is allowed.
                distance = sum(max(0.0, 1 / len(allowed) - p.get(letter, 0.0)) for letter in allowed)
                for length in lengths:
                    if t < length:
                        totals[length][0] += 1
                        totals[length][1] += best in allowed
                        totals[length][2] += distance
            gram.goes_on(symbol)
    return {length: (right / count, off / count) for length, (count, right, off) in totals.items()}


def page(grams=range(HEADS + 1)):
    """A row for each model and each n-gram: accuracy and distance at the shortest and the longest length, alone and with heads."""
    none = {"title": "icll", "why": "", "can": [], "cannot": []}
    models = tomllib.loads((zoo.CONFIGS / "models.toml").read_text())["models"]
    of = lambda file, models: zoo.Learned(file.read_text(), none, {}, models)
    kinds = [("accuracy", zoo.KEPT / "icll.tsv", "heads.tsv"), ("distance", KEPT / "tvd.tsv", "heads-tvd.tsv")]
    kinds = [(what, of(alone, models), of(KEPT / heads, MODELS)) for what, alone, heads in kinds]
    lengths = [kinds[0][1].lengths[0], kinds[0][1].lengths[-1]]
    cell = lambda learned, model, n: zoo.score(learned.median(model, n)) if model in learned.models else ""
    rows = [[zoo.shown(m), *(cell(of, m, n) for _, *both in kinds for n in lengths for of in both)] for m in models]
    task = tomllib.loads((zoo.CONFIGS / "icll.toml").read_text())["task"]
    for n in grams:
        found = scores(n, [int(length) for length in lengths], task, SEQUENCES)
        cells = (cell for kind in (0, 1) for length in lengths for cell in (zoo.score(found[int(length)][kind]), ""))
        rows.append([f"*what followed the last {n} symbols*" if n > 1 else "*what followed the last symbol*" if n else "*frequencies of letters*", *cells])
    head = ["model", *(f"{what}, {n}{heads}" for what, *_ in kinds for n in lengths for heads in ("", ", with heads"))]
    builds = sorted({of.build for _, *both in kinds for of in both})
    if len({build.split(", ")[0] for build in builds}) > 1:
        sys.exit(f"{KEPT} would mix builds: {'; '.join(builds)}; run again those that are older")
    return f"{table(head, rows)}\n\n*`scripts/languages.py`; {'; '.join(builds)}.*\n"


def check():
    """A part of reproduce.sh --check: MODELS are models of the zoo, and an automaton with one way to go is known after a lap."""
    models = (zoo.CONFIGS / "models.toml").read_text()
    settings, all_ = tomllib.loads(only(models)), tomllib.loads(models)
    fits = set(MODELS) <= set(all_["models"]) and settings["per_model"] == {m: of for m, of in all_["per_model"].items() if m in MODELS}
    wrong = [] if fits else ["scripts/languages.py: MODELS are not all of the zoo, or lose their settings"]
    # One letter leads from each of four states: once it has gone around, who knows four symbols is right.
    known, off = scores(4, [400], {"letters": 4, "nodes": 4, "edges": 1, "string": 1000}, 20)[400]
    if not 0.98 < known < 1 or not 0.001 < off < 0.02:
        wrong.append(f"scripts/languages.py: {known} and a distance of {off} where there is one way to go")
    cycle = [{letter: (letter + 1) % 4} for letter in range(4)]
    gram = NGram(1, 4)
    for t, (symbol, allowed) in enumerate(walk(random.Random(0), cycle, 1000, 200)):
        if symbol is not None and t > 8 and gram.says() != {allowed[0]: 1.0}:
            wrong.append(f"scripts/languages.py: 1-grams say {gram.says()} at {t}, where {allowed} comes")
        gram.goes_on(symbol)
    return wrong


if __name__ == "__main__":
    main()
