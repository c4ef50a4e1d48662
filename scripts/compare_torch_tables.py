"""What compare_torch.py measured, as tables in Markdown."""
import torch_models

NAMES = {
    "lstm": "LSTM", "quasi_lstm": "quasi-LSTM", "lru": "LRU", "linear_transformer": "linear transformer", "gpt": "GPT",
    "delta_net": "DeltaNet", "mamba": "Mamba", "slstm": "sLSTM", "mlstm": "mLSTM",
}
SIZES = {
    "T32": "published sizes, B=32, T=32",
    "T256": "published sizes, B=32, T=256",
    "d64": "2 layers, d=64, B=128, T=32",
    "d128": "2 layers, d=128, B=128, T=32",
}
# Published / best → goal, in ms, as measured apart on a CPU of the class of AMD's Zen 4 when the goals were set. The goal
# of a cell is the ratio of its best to its goal.
GOALS = {
    "lstm": [(31.1, 5.1, 0.40), (490, 27, 3.5), (31.2, 20), (106, 80)],
    "quasi_lstm": [(15.2, 4.7, 0.20), (98, 28, 1.7), (27.4, 16), (79, 58)],
    "lru": [(20.3, 14.4, 4.0), (172, 82, 32), (54.8, 31), (168, 120)],
    "linear_transformer": [(7.8, 4.2, 0.40), (52, 25, 3.5), (58.1, 32), (158, 117)],
    "gpt": [(7.4, 5.4, 0.50), (381, 123, 15), (48.1, 31), (143, 119)],
    "delta_net": [(24.6, 5.3, 0.35), (304, 31, 3.0), (77, 33), (190, 118)],
    "mamba": [(24.6, 6.7, 0.50), (771, 42, 4.0), (457, 41), (920, 115)],
    "slstm": [None, None, (56.4, 16), (114, 52)],
    "mlstm": [None, None, (35.6, 13), (75, 39)],
}


def goal(mixer, size):
    """[published,] best and goal of a cell, if it has any."""
    return GOALS[mixer][list(SIZES).index(size)]


def ms(x):
    return f"{x:.0f}" if x >= 100 else f"{x:.1f}" if x >= 10 else f"{x:.2f}"


def times(x):
    return f"{x:.0f}×" if x >= 20 else f"{x:.1f}×" if x >= 2 else f"{x:.2f}×"


def asked(cell):
    """The ratio to best that was asked for, and the goal in ms."""
    *_, best, ours = goal(cell["mixer"], cell["size"])
    return best / ours, ours


def reached(cell):
    return cell["best"]["ms"] / cell["ours"]["ms"] >= asked(cell)[0]


def beside_loops(cells):
    """Mamba's wide cells beside the loop over time that their goals were set with: a faster way has been found since."""

    def said(c):
        loop = c["best"]["ms"] * c["ways"]["unbind loop"] / c["ways"][c["best_way"]]
        return f"{times(loop / c['ours']['ms'])} → {times(asked(c)[0])} ({c['size']})"

    wide = [c for c in cells if c["mixer"] == "mamba" and c["size"].startswith("d") and "unbind loop" in c["ways"]]
    return f" Mamba's goals there were set beside a loop over time: {', '.join(map(said, wide))}." if wide else ""


def table(head, rows):
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def grid(cells):
    """The table of the goals: a row a model, a column a size."""

    def said(cell):
        ours, best, (ratio, least) = cell["ours"], cell["best"], asked(cell)
        theirs, ratios = ms(best["ms"]), times(best["ms"] / ours["ms"])
        if "published" in cell:
            theirs = f"{ms(cell['published']['ms'])} / {theirs}"
            ratios = f"{times(cell['published']['ms'] / ours['ms'])} / {ratios}"
        mark = "" if reached(cell) else " ✗"
        rounded = f"({ms(cell['bf16']['ms'])}) " if "bf16" in cell else ""
        return f"**{ms(ours['ms'])}** {rounded}±{50 * ours['spread']:.0f} % · {theirs} · {ratios} → {times(ratio)} ({ms(least)}){mark}"

    sizes = [s for s in SIZES if any(c["size"] == s for c in cells)]
    by = {(c["mixer"], c["size"]): c for c in cells}
    rows = [
        [NAMES[m], *[said(by[m, s]) if (m, s) in by else "–" for s in sizes]]
        for m in NAMES if any(c["mixer"] == m for c in cells)
    ]
    return table(["", *[SIZES[s] for s in sizes]], rows)


def ways(cell):
    """The formulation that is best, and how much slower the others were in a few samples."""
    best = cell["best_way"]
    others = [f"{way} {times(t / cell['ways'][best])}" for way, t in cell["ways"].items() if way != best]
    return best + (f" ({', '.join(others)})" if others else "")


def details(cells):
    def row(c):
        parameters = str(c["parameters"]["same"])
        if "published" in c["parameters"]:
            parameters += f" ({c['parameters']['published']})"
        side = lambda x: f"{ms(x['ms'])} / {ms(x['p10'])} ±{50 * x['spread']:.0f} %"
        published = side(c["published"]) if "published" in c else "–"
        error = " / ".join(f"{c['errors'][d]:.0e}" for d in ("f32", "f64"))
        return [
            f"{c['size']} {NAMES[c['mixer']]}", parameters, error, c["form"], side(c["ours"]), published, side(c["best"]), ways(c),
            f"{c['ours']['samples']} × {c['ours']['steps']}",
        ]

    head = ["", "parameters (published)", "error f32 / f64", "our form", "ours: median / p10", "published", "best", "best is (others: time)", "samples × steps"]
    return table(head, [row(c) for c in cells])


# The matrices that see a token by itself, before any other.
OF_ONE_TOKEN = {
    "lstm": ["w_ih"], "quasi_lstm": ["w"], "lru": ["B_re", "B_im"], "linear_transformer": ["w_qkv"], "gpt": ["w_qkv"],
    "delta_net": ["w_q", "w_k", "w_v", "w_beta"], "mamba": ["in_proj_weight"], "slstm": [], "mlstm": ["w_up"],
}


def work(c):
    """Multiplications with additions, and exp, tanh or σ, that a token needs in the forward pass: of the recurrent form
    and of the matrices, or of T / 2 earlier tokens in attention. Equal rows at the start of the model count once."""
    d, t, layers, h, k, n = c["width"], c["T"], c["layers"], c["heads"], c["head_dim"], c["state"]
    inner, e = h * k, c["expand"] * c["width"]
    vectors = ("embedding", "positions")
    size = lambda s: s[0] * (s[1] if len(s) > 1 else 0) * (s[2] if len(s) > 2 else 1) * (s[3] if len(s) > 3 else 1)
    # In the first layer they have as many rows to see as there are kinds of tokens: two, or two at each place.
    kinds = 2 * (t if c["positions"] == "learned" else 1) / (c["B"] * t)
    first = [f"blocks.0.mixer.{name}" for name in OF_ONE_TOKEN[c["mixer"]]]
    matrices = sum(
        size(s) * (kinds if name in first else 1)
        for name, s in torch_models.shapes(c).items() if name not in vectors and "A_log" not in name
    )
    macs, functions = {
        "lstm": (0, 5 * inner), "quasi_lstm": (2 * inner, 5 * inner), "lru": (4 * n, 2 * d),
        "linear_transformer": (2 * inner * k, 2 * inner), "gpt": (inner * (t + 1), h * (t + 1) / 2),
        "delta_net": (3 * inner * k, 3 * inner + h), "mamba": (4 * e * n, e * n + 4 * e),
        "slstm": (4 * inner, 6 * inner + d), "mlstm": (3 * inner * k, 2 * inner + 4 * h),
    }[c["mixer"]]
    once = 4 * inner if c["mixer"] == "quasi_lstm" else 0  # the first layer's gates see tokens alone, too
    return matrices + layers * macs, layers * (functions + c["mlp"]) - (1 - kinds) * once


def bounds(cells, machine):
    """How much of a step each limit of the machine would take alone."""
    function = sum(machine["elements"].values()) / len(machine["elements"])  # ns
    products = ("linear", "linear_gelu", "linear_silu", "linear_glu", "matmul", "matmul_t", "t_matmul", "block_diagonal")

    def row(cell):
        c, ours = cell["sizes"], cell["ours"]["ms"]
        tokens = c["B"] * c["T"]
        macs, functions = work(c)
        flops = 3 * 2 * macs * tokens  # a backward pass has two products for one
        ops = {op: f + b for op, (f, b, _) in cell["ops"].items()}
        total = sum(ops.values())
        held = sum(mb for _, _, mb in cell["ops"].values())
        dearest = sorted(ops, key=ops.get, reverse=True)[:3]
        share = lambda x: f"{100 * x:.0f} %"
        peak = flops / machine["gflops"] / 1e6 / ours
        functions *= tokens * function / 1e6 / ours
        faster = asked(cell)[0] * ours / cell["best"]["ms"]
        needed = "–" if reached(cell) else f"{share(peak * faster)} + {share(functions * faster)}"
        return [
            f"{cell['size']} {NAMES[cell['mixer']]}", f"{flops / 1e9:.{2 if flops > 1e8 else 3}f}", share(peak), needed,
            share(functions), f"{held:.1f}", share(4 * held / machine["copy"] / ours),
            share(sum(ops.get(op, 0) for op in products) / total), ", ".join(f"{op} {share(ops[op] / total)}" for op in dearest),
        ]

    head = ["", "GFLOP", "of fp32 peak", "at the goal", "exp, tanh, σ", "MB of values", "through memory", "time in products", "dearest ops"]
    return table(head, [row(c) for c in cells])


def programs(result):
    """How long the first command of the README takes, beside its limit."""
    said = {(): ("`parity`", 60), ("--preset", "published"): ("`parity --preset published`", 240)}
    rows = [[said[tuple(p["flags"])][0], f"{p['wall']:.1f} s", f"{said[tuple(p['flags'])][1]} s"] for p in result.get("programs", [])]
    return "\nWall time of all seven models, trained and evaluated, on all cores:\n\n" + table(["", "wall time", "at most"], rows) + "\n" if rows else ""


def markdown(result):
    v, machine, cells, options = result["versions"], result["machine"], result["cells"], result["options"]
    there = sum(reached(c) for c in cells)
    elements = ", ".join(f"{name} {ns:.2f} ns" for name, ns in machine["elements"].items())
    spreads = [c[side]["spread"] for c in cells for side in ("ours", "best", "published") if side in c]
    rounded = " (where it is wide: with `--products bf16`, which no ratio here\nis of)" if any("bf16" in c for c in cells) else ""
    return f"""\
{v['date']}; {v['cpu']}, one thread; tapezoo {v['tapezoo']} ({v['rustc']}), PyTorch {v['torch']} (Python {v['python']}, {v['system']}).

Milliseconds of processor time of a training step: **ours**{rounded} ± half the distance of the 10th from the 90th percentile ·
PyTorch as published / at its best · how many times faster ours is than either → the goal for the latter (and the goal in
ms, set on another machine of this class). Medians of {2 * options['rounds']} samples, interleaved; ✗: the ratio is short of its goal.

{grid(cells)}

{there} of {len(cells)} reach their goal.{beside_loops(cells)} The spread is at most {50 * max(spreads):.0f} % on any side.

What was timed (percentiles in ms; the largest relative difference of a loss or gradient from ours in single and in double
precision, over all ways of writing it):

{details(cells)}

What bounds a step. Of fp32 peak: the least arithmetic (what the first layer makes of single tokens once for each kind),
three times that of the forward pass, at the {machine['gflops']:.0f} GFLOP/s of a 1024³ product here; at the goal: where a
ratio is short of its goal, the shares of the time it leaves that these products and functions would take. exp, tanh, σ: those of the forward pass at our {elements} each. Values: what the ops of a step
give; through memory: the time of writing and reading them and their gradients at the {machine['copy']:.0f} GB/s of a large copy, if none
stayed in a cache. Time in products (with the activations in `linear_gelu`, `_silu` and `_glu`) and dearest ops: of the time in ops, measured.

{bounds(cells, machine)}
{programs(result)}"""

