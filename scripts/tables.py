"""The parts of the documents that come from runs: RUNS, and under ENTRIES the tables and figures that are made of them.

A run is a line of `tapezoo`, less `--out`, with the minutes of one core that it took. An entry says how its part of a
document is written from the results of its runs. To add one: a line in each, and in the document the marks

    <!-- reproduce.sh NAME writes from here -->
    <!-- to here -->
"""
import re
import statistics
from typing import Callable, NamedTuple

from marks import table
from results import NAMES, each, score, spread
from zoo import shown

# What may help DeltaNet [-1, 1] without label smoothing to learn parity of 3 to 40 tokens, and the mLSTM, which by theory cannot.
SMOOTHLESS = "state-tracking --config configs/state_tracking/parity-smoothing.toml --models plain"
PARITY_HELPED = {"plain": SMOOTHLESS, "mlstm": "state-tracking --task parity --preset reduced --models mlstm --seeds 3"}
PARITY_HELPS = {
    "plain": "", "lengths over 2,000 steps": " --curriculum 2000", "a little noise": " --grad-noise 1e-4", "noise": " --grad-noise 1e-2",
    "both": " --curriculum 2000 --grad-noise 1e-4",
}
S5 = "state-tracking --task s5 --preset reduced --train-len 2-16 --curriculum 1000 --steps 2500 --eval-lens 16,32,64,128"
GROUP = "--preset reduced --eval-lens 8,12,16,24,32,48,64"
DISJOINT = "train --task disjoint --models lstm,delta_net,gpt --elements 16 --small 1 --first large --heads 1 --head-dim 8 --batch 64 --lr 3e-3 --steps 1500 --seeds 1"
RECALL = "mqar --models lstm,linear_transformer,gpt --pairs 4 --steps 400 --seeds 1"
# The learning rates that the table over the zoo chose for the parity of five bits, of models that miss it from some seed, and
# curricula that begin with two bits: every so many steps one more, if the accuracy is above 0.98, or whatever it is.
WINDOWS = {"lssl": "2e-3", "lmu": "2e-3", "gsa": "2e-3", "mamba3": "2e-3", "hgrn2": "8e-3", "slstm": "8e-3", "s4d": "2e-3", "linear_transformer": "8e-3"}
GROWN = {"plain": "", "more bits once right": " --grow-from 2", "more bits by time": " --grow-from 2 --grow-every 250 --grow-at 0"}
POSTER = "configs/poster"
WIDE = "--width 64 --mlp 128 --models delta_net --steps 2000 --seeds 2 --eval-every 0"
ZOO = "train --config configs/zoo/models.toml --steps 1500 --seeds 3"
# The learning rates that the table over the zoo chose for parity, and how training may be helped.
HELPED = {"delta_net_signed": "8e-3", "gated_delta_net_signed": "8e-3", "mlstm": "2e-3", "mamba3": "2e-3"}
HELPS = {
    "plain": "--train-len 16", "lengths": "--train-len 2-16 --curriculum 1000", "a little noise": "--train-len 16 --grad-noise 1e-4",
    "noise": "--train-len 16 --grad-noise 1e-2",
}
# The models of the published protocol of parity with the minutes that they took, GPT, mLSTM and Mamba beside other work.
REPO = {"slstm": 77, "delta_net_signed": 115, "mamba_signed": 98, "delta_net": 102, "gpt": 159, "mlstm": 164, "mamba": 161}
# Those of arithmetic, with the flag that rounds the operands of products, and of arithmetic with brackets. The
# minutes are beside other work, those of DeltaNet with brackets with AVX2 alone.
REPO_ARITHMETIC = {"slstm": (133, ""), "delta_net": (249, " --products bf16"), "delta_net_signed": (250, " --products bf16")}
REPO_BRACKETS = {"slstm": (130, ""), "delta_net_signed": (589, "")}
RUNS = {
    "readme": (0.7, "parity"),
    "zoo-alone": (0.05, RECALL),
    "zoo-ngram": (0.05, f"{RECALL} --ngram 1"),
    "zoo-once": (0.06, f"{DISJOINT} --train-len 11 --eval-lens 11"),
    "zoo-twice": (0.12, f"{DISJOINT} --train-len 22 --eval-lens 22 --repeat 2"),
    **{f"zoo-helped-{m}-{i}": (1, f"{ZOO} --task parity --models {m} --lr {lr} {help} --batch 32 --eval-lens 16,32,64,128")
       for m, lr in HELPED.items() for i, help in enumerate(HELPS.values())},
    **{f"zoo-windows-{m}-{i}": (0.5, f"{ZOO} --task window_parity --window 5 --models {m} --lr {lr} --train-len 16 --batch 32 --eval-lens 16,32,64,128{how}")
       for m, lr in WINDOWS.items() for i, how in enumerate(GROWN.values())},
    **{f"state-repo-{m}": (minutes, f"state-tracking --task parity --preset repo --models {m} --eval-every 5000") for m, minutes in REPO.items()},
    **{f"state-repo-arithmetic-{m}": (minutes, f"state-tracking --task modular_arithmetic --preset repo --models {m}{products} --eval-every 20000")
       for m, (minutes, products) in REPO_ARITHMETIC.items()},
    **{f"state-repo-brackets-{m}": (minutes, f"state-tracking --task modular_arithmetic_with_brackets --preset repo --models {m}{products} --eval-every 20000")
       for m, (minutes, products) in REPO_BRACKETS.items()},
    "state-parity": (16, "state-tracking --task parity --preset reduced --seeds 3"),
    "state-smoothing": (8.5, "state-tracking --config configs/state_tracking/parity-smoothing.toml"),
    **{f"state-helped-{m}-{i}": (2, command + help) for m, command in PARITY_HELPED.items() for i, help in enumerate(PARITY_HELPS.values())},
    "state-arithmetic": (6, "state-tracking --task modular_arithmetic --preset reduced"),
    "state-arithmetic-1": (1, "state-tracking --task modular_arithmetic --preset reduced --models delta_net_signed --seed 1"),
    "state-arithmetic-slstm": (3, "state-tracking --task modular_arithmetic --preset reduced --models slstm --seed 1 --seeds 3"),
    "state-brackets": (6, "state-tracking --task modular_arithmetic_with_brackets --preset reduced"),
    "state-brackets-mult": (6, "state-tracking --task modular_arithmetic_with_brackets --mult --preset reduced"),
    "state-a5": (0.5, f"state-tracking --task a5 {GROUP}"),
    "state-s3": (0.5, f"state-tracking --task s3 {GROUP}"),
    "state-z60": (0.5, f"state-tracking --task z60 {GROUP}"),
    "state-s5": (5, f"state-tracking --task s5 {GROUP} --steps 20000 --curriculum 12000 --batch 128"),
    "state-s5-swaps": (0.4, f"{S5} --moves swaps --models delta_net,slstm,mamba_signed,delta_net_signed"),
    "state-s5-three": (0.1, f"{S5} --moves three --models delta_product2"),
    "poster-parity": (124, f"parity --config {POSTER}/bit_parity.toml"),
    "poster-parity-two": (57, f"parity --config {POSTER}/bit_parity.toml --models lru,quasi_lstm"),
    "poster-parity-lstm": (11, f"parity --config {POSTER}/bit_parity.toml --models lstm --seed 46 --seeds 12"),
    "poster-ones-16": (23, f"parity --config {POSTER}/controlled_parity_16.toml"),
    "poster-ones-32": (45, f"parity --config {POSTER}/controlled_parity_32.toml"),
    "poster-dyck": (45, f"dyck --config {POSTER}/dyck.toml"),
    "poster-mqar": (2, f"mqar --config {POSTER}/mqar.toml --models lstm,linear_transformer,gpt,delta_net,mamba"),
    "poster-mqar-slow": (57, f"mqar --config {POSTER}/mqar.toml --models quasi_lstm,lru"),
    "poster-zoology": (9, "mqar --preset zoology"),
    "poster-x1-parity": (0.6, f"parity --config {POSTER}/explain_1_diagonal.toml"),
    "poster-x1-dyck": (0.9, f"dyck --config {POSTER}/explain_1_diagonal.toml --steps 4000"),
    "poster-x1-mqar": (0.3, f"mqar --config {POSTER}/explain_1_diagonal.toml --preset published-mqar --steps 5000"),
    "poster-x2": (4, f"parity --config {POSTER}/explain_2_future.toml"),
    "poster-x3-parity": (1.5, f"parity --config {POSTER}/explain_3_positions.toml"),
    "poster-x3-dyck": (2, f"dyck --config {POSTER}/explain_3_positions.toml --steps 4000"),
    "poster-x4-4": (1.5, f"parity --config {POSTER}/explain_4_width.toml --width 4 --mlp 8 --steps 2000"),
    "poster-x4-16": (4, f"parity --config {POSTER}/explain_4_width.toml --steps 2000"),
    "poster-x4-64": (9.5, f"parity --config {POSTER}/explain_4_width.toml --width 64 --mlp 128 --steps 2000"),
    "poster-x4-128": (13, f"parity --config {POSTER}/explain_4_width.toml --width 128 --mlp 256 --steps 2000 --seeds 3"),
    "poster-wide-f32": (1.5, f"parity --config {POSTER}/explain_4_width.toml {WIDE} --eval-lens 80,96,112,128,256"),
    "poster-wide-f64": (9, f"parity --config {POSTER}/explain_4_width.toml {WIDE} --eval-lens 640,768,896,1024,2048 --dtype f64"),
    "poster-x5-lru": (16, f"mqar --config {POSTER}/explain_5_lru.toml"),
    "poster-x5-zeros": (0.1, f"mqar --config {POSTER}/explain_5_mqar.toml --models lstm --steps 10000"),
    "poster-x5-all": (0.6, f"mqar --config {POSTER}/explain_5_mqar.toml --all-queries --train-len 10 --eval-lens 10 --steps 10000"),
    "poster-x5-ids": (0.5, f"mqar --config {POSTER}/explain_5_ids.toml --steps 10000"),
    "poster-x5-wide": (4, f"mqar --config {POSTER}/explain_5_mqar.toml --width 32 --mlp 64 --steps 10000"),
}


class Entry(NamedTuple):
    document: str
    what: str
    runs: list = []
    # A function from the results of the runs, in their order, to Markdown; with `pages`, from the pages of `inspect`.
    write: Callable = None
    # Files of docs/figures: (file, runs, models, ending of report's file name, title, names).
    figures: list = []
    # The arguments of `inspect`; {runs} is the folder of the runs. Then `write` gets the pages.
    pages: list = []
    # Each run is a row that names its build. Its results are kept in docs/results/.
    rows: bool = False
    # The command that writes it if that is not reproduce.sh, with its core-hours, its small version and the name
    # between its marks.
    command: str = ""
    hours: float = 0.0
    small: str = ""
    marks: str = ""
    # CI makes it again: how far a number may be off, and the model whose rows are enough.
    check: float = None
    model: str = ""


def names(models):
    return {m: NAMES.get(m, m) for m in models}


def by_length(head, results, rows, columns, cell=spread):
    """Rows of (what stands first, model), columns of (head, metric, length)."""
    lines = [[*(first if isinstance(first, list) else [first]), *(cell(results.values(model, metric, n)) for _, metric, n in columns)] for first, model in rows]
    return table([*head, *(c[0] for c in columns)], lines)


# README.md and docs/zoo.md


def readme(results):
    with open(f"{results.path}/table.txt") as f:
        return f"```text\n{f.read().rstrip()}\n```"


def two(head, results, models, lengths):
    rows = [[NAMES[m], *(each([v for n in ns for v in r.values(m, "accuracy", n)]) for r, ns in zip(results, lengths))] for m in models]
    return table(head, rows)


# docs/zoo_results.md


def zoo_helped(*results):
    """Rows of models, columns of helps; each cell has all seeds at eight times the length."""
    results = iter(results)
    return table(["at 128", *HELPS], [[shown(m), *(each(next(results).values(m, "accuracy", 128)) for _ in HELPS)] for m in HELPED])


def zoo_windows(*results):
    """Rows of models, columns of curricula at the length that was learned and at eight times that; each cell has all seeds."""
    rows = []
    for i, m in enumerate(WINDOWS):
        of = results[i * len(GROWN):][:len(GROWN)]
        rows.append([shown(m), *(each(r.values(m, "accuracy", n)) for n in (16, 128) for r in of)])
    return table(["model", *(f"{how}, {n}" for n in (16, 128) for how in GROWN)], rows)


# docs/mixers.md


def mixers_recall(page):
    accuracy, length = page.accuracy()
    rows = []
    for t, (target, said) in enumerate(zip(page.data["targets"], page.data["runs"][0]["said"])):
        if target is not None:
            rows.append([t + 1, page.data["tokens"][t], page.data["classes"][target], page.data["classes"][said["class"]]])
    return f"Accuracy at length {length}: {accuracy}.\n\n{table(['step', 'key', 'its value', 'the answer'], rows)}"


def mixers_compare(page):
    both = [page.accuracy(run) for run in (0, 1)]
    rows = [[f"right, of the positions of length {both[0][1]}", *(b[0] for b in both)]]
    # In the first block β is a function of the token. The head with the smallest eigenvalue, which stands before the 1.
    eigenvalues = [page.tensor(f"run{run}.blocks.0.mixer.eigenvalue") for run in (1, 2)]
    heads = [min(range(0, len(e[0]), 2), key=lambda i: min(step[i] for step in e)) for e in eigenvalues]
    for token, what in ("1", "one"), ("0", "zero"):
        t = page.data["tokens"].index(token)
        rows.append([f"eigenvalue along k at a {what}, head of the smallest", *(f"{e[t][i]:.2f}".replace("-", "−") for e, i in zip(eigenvalues, heads))])
    return table(["first block", "`delta_net`", "`delta_net:eigenvalues=-1..1`"], rows)


def mixers_rotation(page):
    accuracy, length = page.accuracy()
    re, im = (page.tensor(f"run1.blocks.1.mixer.{part} eigenvalue") for part in ("Re", "Im"))
    number = lambda x: f"{x:.2f}".replace("-", "−")
    t, flip = 13, 10
    i = max(range(len(im[t])), key=lambda i: im[t][i])
    rows = [[t + 1, page.data["tokens"][t], f"{number(re[t][i])} ± {number(im[t][i])} i"], [flip + 1, page.data["tokens"][flip], number(min(re[flip]))]]
    return f"Accuracy at length {length}: {accuracy}.\n\n{table(['step', 'token', 'second block: the pair that turns most; the smallest'], rows)}"


# docs/state_tracking.md

# Grazzi et al. 2025, tables 3 and 5: best of their runs, and median.
PARITY = {
    "gpt": ("GPT (Transformer)", "0.022", ".003 ± .013"),
    "mlstm": ("mLSTM", "0.087", ".018 ± .035"),
    "slstm": ("sLSTM", "1.000", "1.000 ± .000"),
    "mamba": ("Mamba [0, 1]", "0.000", ".000 ± .000"),
    "mamba_signed": ("Mamba [-1, 1]", "1.000", "1.000 ± .000"),
    "delta_net": ("DeltaNet [0, 1]", "0.017", ".010 ± .005"),
    "delta_net_signed": ("DeltaNet [-1, 1]", "1.000", ".999 ± .006"),
}
ARITHMETIC = {
    "gpt": ("0.031", ".018 ± .009"), "mlstm": ("0.040", ".027 ± .013"), "slstm": ("0.787", ".124 ± .000"),
    "mamba": ("0.095", ".066 ± .029"), "mamba_signed": ("0.241", ".214 ± .027"), "delta_net": ("0.314", ".214 ± .056"),
    "delta_net_signed": ("0.971", ".826 ± .146"),
}
# With multiplication best and median, without it median.
BRACKETS = {
    "gpt": ("0.067", ".064 ± .003", ".025 ± .000"), "mlstm": ("0.114", ".114 ± .000", ".034 ± .001"),
    "slstm": ("0.178", ".163 ± .015", ".153 ± .020"), "mamba": ("0.123", ".116 ± .007", ".072 ± .008"),
    "mamba_signed": ("0.116", ".098 ± .009", ".126 ± .010"), "delta_net": ("0.194", ".162 ± .018", ".113 ± .009"),
    "delta_net_signed": ("0.260", ".227 ± .011", ".129 ± .016"),
}
# Without multiplication, of an older version of the paper: best and median.
BRACKETS_ALONE = {"slstm": ("0.173", ".153 ± .020"), "delta_net_signed": ("0.200", ".129 ± .016")}


def state_parity(ours):
    head = ["model", "best, published", "median, published", "40-256", "256 alone", "3-40"]
    return table(head, [[*about, *(each(ours.values(m, "scaled", n)) for n in ("40-256", 256, "3-40"))] for m, about in PARITY.items()])


def state_repo(*results, published={m: about[1:] for m, about in PARITY.items()}, every=5000, last=20000):
    """The models with the evaluations on the way."""
    steps = range(every, last + 1, every)
    rows = []
    for ours in results:
        (commits, _, days), run = ours.origin(several=True), ours.runs[0]
        m, done = run["model"], run["steps"]
        scores = [*(each(ours.values(m, "scaled", "40-256", step)) for step in steps), each(ours.values(m, "scaled", "3-40"))]
        short = re.sub("([0-9a-f]{7})[0-9a-f]*", r"\1", commits)
        rows.append([PARITY[m][0], *published[m], *scores, f"commit {short}, {days}" + ("" if done == last else f", after {done:,} steps")])
    head = ["model", "best, published", "median, published", *(f"40-256, {step:,} steps" for step in steps), "3-40", "made by"]
    return table(head, rows)


def state_smoothing(parity, others):
    rows = [
        ("the reduced preset: smoothing 0.02, 8000 steps, 8e-3 down to 0", parity, "delta_net_signed"),
        ("no smoothing, eps 1e-15", others, "no_smoothing"),
        ("4000 steps", others, "half_the_steps"),
        ("3e-3 down to 0", others, "smaller_steps"),
        ("no smoothing, eps 1e-15, 4000 steps, 5e-3 down to a tenth", others, "plain"),
    ]
    return table(["DeltaNet [-1, 1], width 32", "40-256, seeds 0, 1, 2", "at 256 alone"],
                 [[what, each(r.values(m, "scaled", "40-256")), each(r.values(m, "scaled", 256))] for what, r, m in rows])


def state_arithmetic(*ours):
    seeds = lambda m, n: each(sum((of.values(m, "scaled", n) for of in ours), []))
    # tests/task_oracles counts what a constant answer has.
    rows = [["constant predictor", "0.009", "", "", ""]]
    rows += [[PARITY[m][0], *about, seeds(m, "40-256"), seeds(m, "3-40")] for m, about in ARITHMETIC.items()]
    return table(["model", "best, published", "median, published", "reduced, 40-256", "reduced, 3-40"], rows)


def state_brackets(without, with_):
    of = lambda r, m: [each(r.values(m, "scaled", n)) for n in ("40-256", "3-40")]
    rows = [["constant predictor", "**0.139**", "", "0.139", "", "0.004", "0.004", ""]]
    rows += [[PARITY[m][0], *about[:2], *of(with_, m), about[2], *of(without, m)] for m, about in BRACKETS.items()]
    return table(["model", "published best, with *", "median", "reduced, 40-256", "3-40", "published median, no *", "reduced, 40-256", "3-40"], rows)


GROUP_MODELS = {
    "delta_net": "DeltaNet [0, 1]", "delta_net_signed": "DeltaNet [-1, 1]", "mamba_signed": "Mamba [-1, 1]", "slstm": "sLSTM",
    "delta_product2": "DeltaProduct, n = 2", "delta_product4": "DeltaProduct, n = 4",
}


def state_a5(ours):
    lengths = (8, 12, 16, 24, 32, 64)
    rows = [[name, *(each(ours.values(m, "accuracy", n)) for n in lengths)] for m, name in GROUP_MODELS.items()]
    rows += [[f"sequences, n = {n}", *(each(ours.values(f"delta_product{n}", "sequences", t)) for t in lengths)] for n in (2, 4)]
    return table(["model", *lengths], rows)


def state_groups(*results, groups):
    cells = [(name, r, n) for name, r in zip(groups, results) for n in (8, 16, 32, 64)]
    rows = [[name, *(each(r.values(m, "accuracy", n)) for _, r, n in cells)] for m, name in GROUP_MODELS.items()]
    rows += [["sequences, sLSTM", *(each(r.values("slstm", "sequences", n)) for _, r, n in cells)]]
    rows += [[f"sequences, n = {i}", *(each(r.values(f"delta_product{i}", "sequences", n)) for _, r, n in cells)] for i in (2, 4)]
    return table(["model", *(f"{name}: {n}" if n == 8 else n for name, _, n in cells)], rows)


def state_moves(swaps, three):
    rows = [("swaps", swaps, m) for m in ("delta_net", "mamba_signed", "slstm", "delta_net_signed")] + [("at most three moved", three, "delta_product2")]
    cells = lambda r, m: [*(each(r.values(m, "accuracy", n)) for n in (16, 32, 64, 128)), each(r.values(m, "sequences", 32))]
    return table(["tokens", "model", 16, 32, 64, 128, "sequences at 32"], [[what, GROUP_MODELS[m], *cells(r, m)] for what, r, m in rows])


def state_helped(*results):
    """Rows of models and ranges of lengths, columns of helps; each cell has the scaled accuracy of all seeds."""
    rows = []
    for i, (m, name) in enumerate({"plain": "DeltaNet [-1, 1], no smoothing", "mlstm": "mLSTM"}.items()):
        of = results[i * len(PARITY_HELPS):][:len(PARITY_HELPS)]
        rows += [[f"{name}, {n}", *(each(r.values(m, "scaled", n)) for r in of)] for n in ("40-256", "3-40")]
    return table(["seeds 0, 1, 2", *PARITY_HELPS], rows)


def state_beta(page, *more):
    """1 − β of the head that flips the most at ones: medians over the ones and over the zeros of random bits."""
    rows = []
    for page in (page, *more):
        name = next(name for name, run in BETA if f"/{run} " in f"{page.args} ")
        blocks = [page.tensor(f"run1.blocks.{block}.mixer.eigenvalue") for block in (0, 1)]
        at = lambda token, block, i: statistics.median(e[i] for e, t in zip(blocks[block], page.data["tokens"]) if t == token)
        head = min(((b, i) for b in (0, 1) for i in range(0, len(blocks[b][0]), 2)), key=lambda head: at("1", *head))
        rows.append([name, head[0] + 1, f"{at('1', *head):.4f}", f"{at('0', *head):.2f}"])
    return table(["run", "block", "1 - β on a one", "1 - β on a zero"], rows)


BETA = [(f"{what}, seed {seed}", f"{run}-seed{seed}")
        for what, run in (("the preset", "state-parity/delta_net_signed"), ("no smoothing", "state-smoothing/no_smoothing"), ("no smoothing, 4000 steps of 5e-3", "state-smoothing/plain"))
        for seed in (0, 1, 2)]

# docs/poster.md

SEVEN = ["lstm", "delta_net", "lru", "quasi_lstm", "mamba", "gpt", "linear_transformer"]
LENGTHS = (32, 48, 64, 128, 256)


def poster_parity(ours):
    return by_length(["model"], ours, [(NAMES[m], m) for m in SEVEN], [(n, "accuracy", n) for n in LENGTHS])


def poster_lstm(ours):
    at = {n: ours.values("lstm", "accuracy", n) for n in LENGTHS}
    rule = f"{sum(v >= 0.95 for v in at[256])} of {len(at[256])}"
    return table(["model", *at, "seeds with 0.95 at 256"], [[NAMES["lstm"], *map(spread, at.values()), rule]])


def poster_ones(plain, half, hard):
    rows = []
    for m in "lru", "quasi_lstm":
        for first, what, r, n in (NAMES[m], "about 16 of 32 (plain)", plain, 32), ("", "12 of 32", half, 32), ("", "12 of 16", hard, 16):
            rows.append([first, what, spread(r.values(m, "accuracy", n)), spread(r.values(m, "accuracy", n + n // 2))])
    return table(["model", "ones", "at that length", "50 % longer"], rows)


def poster_dyck(ours):
    models = ("lstm", "quasi_lstm", "mamba", "lru", "delta_net", "gpt", "linear_transformer")
    return by_length(["model"], ours, [(NAMES[m], m) for m in models], [(n, "recall", n) for n in LENGTHS])


def poster_mqar(ours):
    models = ("delta_net", "lstm", "mamba", "linear_transformer", "gpt", "quasi_lstm", "lru")
    return by_steps([(NAMES[m], ours, m) for m in models if any(run["model"] == m for run in ours.runs)])


def by_steps(models):
    """Rows of (name, results, model): MQAR at length 8 while training, and how many seeds have solved it in the end."""
    rows = []
    for name, ours, m in models:
        last = ours.values(m, "accuracy", 8)
        solved = f"{sum(v >= 0.99 for v in last)} of {len(last)}"
        rows.append([name, *(spread(ours.values(m, "accuracy", 8, s)) for s in (5000, 10000, 20000, 40000)), solved])
    return table(["model", "5,000 steps", "10,000", "20,000", "40,000", "seeds at 0.99"], rows)


def poster_x5_lru(published, changed):
    return by_steps([("as published", published, "lru"), ("LayerNorm", changed, "lru_layer_norm"), ("state from zeros", changed, "lru_zeros")])


def poster_wide(single, double):
    right = lambda results, n: ", ".join(map(score, results.values("delta_net", "accuracy", n)))
    return table(["f32 at", "accuracy", "f64 at", "accuracy"], [[n, right(single, n), 8 * n, right(double, 8 * n)] for n in (80, 96, 112, 128, 256)])


def poster_zoology(ours):
    rows = []
    for m, about in ("delta_net", "DeltaNet, 2 heads of 32, lr 5e-3"), ("gpt", "GPT, 1 head of 64, lr 3e-3"):
        run = next(r for r in ours.runs if r["model"] == m)
        rows.append([about, f"{run['steps']:,}", *(each(ours.values(m, "accuracy", n)) for n in (64, 128))])
    return table(["model", "steps", "64 tokens, 4 pairs", "128 tokens, 8 pairs"], rows)


X1 = {
    "delta_net": "DeltaNet as published: diagonal, raw keys", "delta_net_whole": "whole matrix, raw keys",
    "delta_net_unit": "diagonal, keys of length 1", "delta_net_whole_unit": "whole matrix, keys of length 1",
    "linear_transformer": "linear transformer as published: diagonal", "linear_transformer_whole": "whole matrix",
}


def poster_x1(parity, dyck, mqar):
    columns = (parity, "accuracy", 32), (parity, "accuracy", 128), (dyck, "recall", 48), (mqar, "accuracy", 8)
    head = ["model", "parity at 32, 3,000 steps", "at 128", "Dyck recall at 48, 4,000 steps", "MQAR (e), 5,000 steps"]
    return table(head, [[about, *(spread(r.values(m, metric, n)) for r, metric, n in columns)] for m, about in X1.items()])


def poster_x2(ours):
    rows = [(["Mamba as published", "6,000"], "mamba"), (["causal convolution", "6,000"], "mamba_causal"),
            (["LRU as published", "2,000"], "lru"), (["LayerNorm", "2,000"], "lru_layer_norm")]
    return by_length(["model", "steps"], ours, rows, [(n, "accuracy", n) for n in LENGTHS])


POSITIONS = {"": "learned, as published", "_none": "none", "_sinusoidal": "sinusoidal", "_rope": "RoPE"}


def poster_x3(ours, metric):
    rows = [([NAMES[m], kind], m + ending) for m in ("delta_net", "linear_transformer", "gpt") for ending, kind in POSITIONS.items()]
    return by_length(["model", "positions"], ours, rows, [(n, metric, n) for n in LENGTHS])


def poster_x4(*widths):
    cells = [(w, r, n) for n in (32, 64, 256) for w, r in zip((4, 16, 64, 128), widths)]
    models = ("lstm", "delta_net", "gpt", "linear_transformer", "mamba", "quasi_lstm")
    rows = [[NAMES[m], *(spread(r.values(m, "accuracy", n)) for _, r, n in cells)] for m in models]
    return table(["model", *(f"{n}, width {w}" if w == 4 else w for w, _, n in cells)], rows)


def poster_x5(published, zeros, all_, ids, wide):
    rows = []
    for m in "lstm", "delta_net", "mamba", "linear_transformer", "gpt":
        first = published.values(m, "accuracy", 8, 10000)
        carried = spread(zeros.values(m, "accuracy", 8)) if m == "lstm" else "carries none"
        rows.append([NAMES[m], spread(first), carried, *(spread(r.values(m, "accuracy", n)) for r, n in ((all_, 10), (ids, 8), (wide, 8)))])
    return table(["model", "as published", "state from zeros", "every key asked for", "values with ids of their own", "width 32, MLP 64"], rows)


def drawn(file, runs, models, ending, title, labels=None):
    return (file, runs if isinstance(runs, list) else [runs], models, ending, title, {**NAMES, **(labels or {})})


FIVE = ["lstm", "linear_transformer", "gpt", "delta_net", "mamba"]
X3 = {f"{m}{e}": f"{NAMES[m]} ({'none' if e else 'learned'})" for m in ("delta_net", "linear_transformer", "gpt") for e in ("", "_none")}
STATE, POST, MIXERS, ZOO_PAGE = "docs/state_tracking.md", "docs/poster.md", "docs/mixers.md", "docs/zoo_results.md"
ENTRIES = {
    "readme": Entry("README.md", "seven mixers on parity", ["readme"], readme, check=0.05, model="lstm"),
    "zoo-ngram": Entry("docs/zoo.md", "recall with an n-gram head", ["zoo-alone", "zoo-ngram"], check=0.05,
        write=lambda *r: two(["accuracy at length 32, 64", "alone", "with the head"], r, ("lstm", "linear_transformer", "gpt"), [(32, 64)] * 2)),
    "zoo-twice": Entry("docs/zoo.md", "two sets, read once and twice", ["zoo-once", "zoo-twice"],
        write=lambda *r: two(["accuracy", "once", "twice"], r, ("lstm", "delta_net", "gpt"), [(11,), (22,)])),
    "zoo-tree": Entry("docs/zoo.md", "zoo.svg, the family tree", command="${TAPEZOO:-target/release/tapezoo} models --tree > target/zoo.svg && mv target/zoo.svg docs/zoo.svg; tests/cli.rs compares",
        small="${TAPEZOO:-target/release/tapezoo} models --tree > target/reproduce/quick/zoo.svg"),
    "zoo-list": Entry("docs/zoo.md", "the list of models", command="${TAPEZOO:-target/release/tapezoo} models; tests/cli.rs compares",
        small="${TAPEZOO:-target/release/tapezoo} models"),
    "zoo-results": Entry(ZOO_PAGE, "who can do what, over the whole zoo", hours=18, marks="zoo.py writes from here",
        command="scripts/zoo.py run parity s3 count3 count5 s5_swaps a5 dyck window match mqar icll && scripts/zoo.py table --write",
        small="scripts/zoo.py run parity --quick --out target/reproduce/zoo"),
    "zoo-tasks": Entry(ZOO_PAGE, "each task at every length", marks="zoo.py, task by task, writes from here",
        command="scripts/zoo.py table --write", small="scripts/zoo.py table"),
    "zoo-recall": Entry(ZOO_PAGE, "recall by ten rules of equal size", hours=1.5, marks="recall.py writes from here",
        command="cargo build --release --bin tapezoo --example recall && scripts/recall.py run && scripts/recall.py table --write",
        small="cargo build --release --example recall && scripts/recall.py run --quick --out target/reproduce/recall"),
    "zoo-crossing": Entry(ZOO_PAGE, "brackets that cross, put to the runs of Dyck", hours=1.3, marks="crossing.py writes from here",
        command="scripts/zoo.py run dyck && scripts/crossing.py run && scripts/crossing.py table --write",
        small="scripts/zoo.py run dyck --quick --out target/reproduce/zoo && scripts/crossing.py run --quick --out target/reproduce/zoo"),
    "zoo-swaps": Entry(ZOO_PAGE, "the reflections that were learned for swaps of S5", hours=2, marks="swaps.py writes from here",
        command="scripts/zoo.py run s5_swaps && scripts/swaps.py run && scripts/swaps.py table --write",
        small="scripts/zoo.py run s5_swaps --quick --out target/reproduce/zoo && scripts/swaps.py run --quick --out target/reproduce/zoo"),
    "zoo-languages": Entry(ZOO_PAGE, "in-context languages with n-gram heads", hours=0.6, marks="languages.py writes from here",
        command="scripts/zoo.py run icll && scripts/languages.py run && scripts/languages.py table --write",
        small="scripts/languages.py run --quick --out target/reproduce/zoo"),
    "zoo-helped": Entry(ZOO_PAGE, "parity by a curriculum, or with noise", [f"zoo-helped-{m}-{i}" for m in HELPED for i in range(len(HELPS))], zoo_helped),
    "zoo-windows": Entry(ZOO_PAGE, "the parity of five bits by a curriculum", [f"zoo-windows-{m}-{i}" for m in WINDOWS for i in range(len(GROWN))], zoo_windows),
    "zoo-lasp": Entry("docs/zoo.md", "one sequence on two cores", hours=0.1, marks="lasp writes from here",
        command="(cargo run --release --example lasp; date +%F.) > target/lasp.md && python3 scripts/marks.py docs/zoo.md lasp < target/lasp.md",
        small="cargo run --release --quiet --example lasp 4096"),
    "mixers-recall": Entry(MIXERS, "linear transformer: what it answers", write=mixers_recall, check=0.05,
        pages=["--model linear_transformer --task mqar --steps 1000"]),
    "mixers-compare": Entry(MIXERS, "DeltaNet with both ranges", write=mixers_compare, pages=["--model delta_net --compare delta_net:eigenvalues=-1..1 --len 24"], check=0.05),
    "mixers-rotation": Entry(MIXERS, "DeltaProduct: a rotation", write=mixers_rotation, check=0.05,
        pages=["--model delta_product:eigenvalues=-1..1 --task s3 --steps 5000"]),
    "mixers-figures": Entry(MIXERS, "figures/mixer_*.png; needs Node, Chromium, STIX fonts and pngquant", hours=0.05, command="scripts/mixer_figures.sh",
        small="scripts/browser_test.sh target/browser_test lstm",
        write=lambda: "One script makes all figures of this page in a browser:"),
    "state-parity": Entry(STATE, "parity, reduced preset", ["state-parity"], state_parity),
    "state-repo": Entry(STATE, "parity as published: 20,000 steps of 256", [f"state-repo-{m}" for m in REPO], state_repo, rows=True),
    "state-repo-arithmetic": Entry(STATE, "arithmetic as published: 100,000 steps of 256", [f"state-repo-arithmetic-{m}" for m in REPO_ARITHMETIC],
        lambda *r: state_repo(*r, published=ARITHMETIC, every=20000, last=100000), rows=True),
    "state-repo-brackets": Entry(STATE, "arithmetic with brackets as published: 100,000 steps of 256", [f"state-repo-brackets-{m}" for m in REPO_BRACKETS],
        lambda *r: state_repo(*r, published=BRACKETS_ALONE, every=20000, last=100000), rows=True),
    "state-smoothing": Entry(STATE, "what DeltaNet needs for parity", ["state-parity", "state-smoothing"], state_smoothing),
    "state-helped": Entry(STATE, "parity by growing lengths, or with noise", [f"state-helped-{m}-{i}" for m in PARITY_HELPED for i in range(len(PARITY_HELPS))],
        state_helped),
    "state-beta": Entry(STATE, "1 - β in trained DeltaNets", ["state-parity", "state-smoothing"], state_beta,
        pages=[f"--checkpoint {{runs}}/{run} --len 255" for _, run in BETA]),
    "state-arithmetic": Entry(STATE, "arithmetic without brackets", ["state-arithmetic", "state-arithmetic-1", "state-arithmetic-slstm"], state_arithmetic),
    "state-brackets": Entry(STATE, "arithmetic with brackets", ["state-brackets", "state-brackets-mult"], state_brackets),
    "state-a5": Entry(STATE, "products in A5", ["state-a5"], state_a5,
        figures=[drawn("state_a5_accuracy.svg", "state-a5", list(GROUP_MODELS), "accuracy", "A5: accuracy over evaluation length", GROUP_MODELS)]),
    "state-groups": Entry(STATE, "products in S3 and Z60", ["state-s3", "state-z60"], lambda *r: state_groups(*r, groups=("S3", "Z60"))),
    "state-s5": Entry(STATE, "products in S5", ["state-s5"], lambda r: state_groups(r, groups=("S5",))),
    "state-moves": Entry(STATE, "S5 from some of its elements", ["state-s5-swaps", "state-s5-three"], state_moves),
    "poster-a": Entry(POST, "(a) bit parity", ["poster-parity"], poster_parity,
        figures=[drawn("poster_a_parity.svg", "poster-parity", SEVEN, "accuracy", "Bit parity: accuracy over evaluation length")]),
    "poster-a-lstm": Entry(POST, "(a) the LSTM with twelve more seeds", ["poster-parity-lstm"], poster_lstm),
    "poster-b": Entry(POST, "(b) a given number of ones", ["poster-parity-two", "poster-ones-32", "poster-ones-16"], poster_ones),
    "poster-c": Entry(POST, "(c) Dyck", ["poster-dyck"], poster_dyck,
        figures=[drawn("poster_c_dyck.svg", "poster-dyck", SEVEN, "recall", "Dyck: recall over evaluation length")]),
    "poster-d": Entry(POST, "(d) Dyck over the steps of training", ["poster-dyck"], lambda r: "",
        figures=[drawn("poster_d_dyck.svg", "poster-dyck", SEVEN, "recall-at-48", "Dyck: recall at 48, trained at 32")]),
    "poster-e": Entry(POST, "(e) MQAR", ["poster-mqar"], poster_mqar,
        figures=[drawn("poster_e_mqar.svg", "poster-mqar", FIVE, "accuracy-at-8", "MQAR as published: accuracy")]),
    "poster-e-slow": Entry(POST, "(e) MQAR, quasi-LSTM and LRU", ["poster-mqar-slow"], poster_mqar),
    "poster-zoology": Entry(POST, "Zoology's MQAR", ["poster-zoology"], poster_zoology),
    "poster-x1": Entry(POST, "explanation 1: the diagonal", ["poster-x1-parity", "poster-x1-dyck", "poster-x1-mqar"], poster_x1,
        figures=[drawn("poster_x1_parity.svg", "poster-x1-parity", list(X1)[:4], "accuracy", "Parity: DeltaNet, the matrix and the length of keys",
            {"delta_net": "as published", "delta_net_whole": "whole matrix", "delta_net_unit": "keys of length 1", "delta_net_whole_unit": "both"})]),
    "poster-x2": Entry(POST, "explanation 2: the future", ["poster-x2"], poster_x2,
        figures=[drawn("poster_x2_parity.svg", "poster-x2", ["mamba", "mamba_causal", "lru", "lru_layer_norm"], "accuracy", "Parity with and without a view of the future",
            {"mamba": "Mamba, as published", "mamba_causal": "Mamba, causal", "lru": "LRU, as published", "lru_layer_norm": "LRU, LayerNorm"})]),
    "poster-x3-parity": Entry(POST, "explanation 3: positions, parity", ["poster-x3-parity"], lambda r: poster_x3(r, "accuracy")),
    "poster-x3-dyck": Entry(POST, "explanation 3: positions, Dyck", ["poster-x3-dyck"], lambda r: poster_x3(r, "recall"),
        figures=[drawn("poster_x3_dyck.svg", "poster-x3-dyck", list(X3), "recall", "Dyck: recall with learned positions and with none", X3)]),
    "poster-x4": Entry(POST, "explanation 4: width", ["poster-x4-4", "poster-x4-16", "poster-x4-64", "poster-x4-128"], poster_x4,
        figures=[drawn("poster_x4_parity.svg", "poster-x4-16", FIVE, "accuracy", "Parity at width 16, 2,000 steps")]),
    "poster-wide": Entry(POST, "explanation 4: a wide DeltaNet in f32 and f64", ["poster-wide-f32", "poster-wide-f64"], poster_wide),
    "poster-x5": Entry(POST, "explanation 5: MQAR", ["poster-mqar", "poster-x5-zeros", "poster-x5-all", "poster-x5-ids", "poster-x5-wide"], poster_x5,
        figures=[drawn("poster_x5_mqar.svg", "poster-x5-wide", FIVE, "accuracy-at-8", "MQAR at the published size, width 32: accuracy")]),
    "poster-x5-lru": Entry(POST, "explanation 5: LRU on MQAR", ["poster-mqar-slow", "poster-x5-lru"], poster_x5_lru),
    "race": Entry("docs/performance.md", "steps beside PyTorch and JAX", command="scripts/race.py --write", hours=1.5, marks="race.py writes from here",
        small="scripts/race.py --cells T32 --models lstm --rounds 1 --json target/quick-race.json"),
    "scaling": Entry("docs/performance.md", "lengths to 65,536; figures/scaling_*.svg", command="scripts/scaling.sh", hours=0.3, marks="scaling.sh writes from here",
        small="cargo run --release --quiet --example scaling target/reproduce/quick 1024"),
    "kernels": Entry("docs/kernels.md", "what each kernel buys", command="scripts/kernels.sh --write", hours=0.35, marks="kernels.sh writes from here",
        small="scripts/kernels.sh --cells T32 --models lstm --rounds 1 --json target/quick-kernels.json"),
    "kernels-forms": Entry("docs/kernels.md", "what it buys in other forms", command="scripts/kernels.sh --forms --write", hours=0.3, marks="kernels.sh --forms writes from here",
        small="scripts/kernels.sh --forms --models lstm --rounds 1"),
    "gpu": Entry("docs/gpu.md", "least times of the CUDA kernels; no GPU needed", command="scripts/gpu_walk.sh --write", hours=0.1, marks="gpu_walk.sh writes from here",
        small="scripts/gpu_walk.sh --kernel conv_forward_packed_4"),
}
FIGURES = {
    "zoo.svg", "zoo_parity.svg", "zoo_s5_swaps.svg", "zoo_mqar.svg", "zoo_recall_64.svg", "zoo_recall_256.svg", "scaling_time.svg",
    "scaling_memory.svg", "scaling_streaming.svg",
}
# Tables of words, formulas or links, and the one that a lent GPU left: (document, how its first row begins).
BY_HAND = {
    "README.md": ["you ask", "example", "question"],
    "docs/zoo.md": ["family", "mixer | A_t"],
    "docs/gpu.md": ["kernel | before", "column", "| now | goal"],
    "docs/poster.md": ["published claim"],
    "docs/state_tracking.md": ["mixer | transition", "group | smallest", "| repo (released", "| parity | w/o"],
    "docs/weights.md": ["`--from`"],
}
