"""What the walker counted, as tables in Markdown."""

from .cost import CLOCK, MEMORY, PROCESSORS

# A launch that takes less than this share of its pass is put together with others of its kind.
SMALL = 0.02
FLOORS = ["issue", "memory", "tensor cores", "shared memory", "functions", "serial chain"]


def table(head, rows):
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join(lines + [f"| {' | '.join(map(str, row))} |" for row in rows])


def ms(x):
    return f"{x:.3f}" if x < 10 else f"{x:.1f}"


def gigabytes(x):
    return f"{x / 1e9:.2f}"


def count(x):
    return f"{x:,.0f}"


def share(x):
    return f"{x:.0%}".replace("%", " %")


def bound(floors):
    """The greatest floor's name."""
    return max(floors, key=floors.get)


def least(costs):
    """The least time of launches one after another, in ms."""
    return sum(max(c.floors().values()) for c in costs)


def wide(c):
    loads, stores = c.wide("load"), c.wide("store")
    return " / ".join("–" if x is None else share(x) for x in (loads, stores))


HEAD = [
    "kernel", "measured", "registers / KB / blocks a processor (occupancy)", "blocks (waves)",
    "instructions a block (integer, control)", "mma / ldmatrix / functions", "128-bit loads / stores",
    "GB asked / touched", *FLOORS,
]  # fmt: skip


def row(c, measured):
    each = lambda kind: count(c.by_kind[kind] / c.blocks)
    floors = c.floors()
    times = [f"**{ms(x)}**" if name == bound(floors) else ms(x) for name, x in floors.items()]
    spilled = f", {c.spilled} bytes spilled" if c.spilled else ""
    return [
        f"`{c.kernel}`",
        "" if measured is None else ms(measured),
        f"{c.registers} / {c.shared / 1024:.0f} / {c.resident} ({share(c.occupancy)}{spilled})",
        f"{count(c.blocks)} ({c.waves:.1f})",
        f"{count(c.issued / c.blocks)} ({share(c.by_kind['int'] / c.issued)})",
        f"{each('mma')} / {each('ldmatrix')} / {each('mufu')}",
        wide(c),
        f"{gigabytes(c.asked)} / {gigabytes(c.distinct)}",
        *times,
    ]


def kernels(name, costs, measured):
    """The launches of a pass, and what each and all of them took on a GPU."""
    each, took = measured
    all_, each = least(costs), {id(c): took for c, took in zip(costs, each)}
    large = [c for c in costs if max(*c.floors().values(), each[id(c)] or 0) >= SMALL * max(all_, took or 0)]
    small = [c for c in costs if c not in large]
    rows = [row(c, each[id(c)]) for c in large]
    if small:
        sums = [ms(sum(c.floors()[name] for c in small)) for name in FLOORS]
        traffic = f"{gigabytes(sum(c.asked for c in small))} / {gigabytes(sum(c.distinct for c in small))}"
        times = [each[id(c)] for c in small]
        rows.append([f"{len(small)} more", "" if None in times else ms(sum(times)), *[""] * 5, traffic, *sums])
    whole = f", measured {ms(took)} ms" if took else ""
    return f"**{name}**: {ms(all_)} ms{whole}\n\n{table(HEAD, rows)}"


def summary(passes, measured, others=()):
    """Every pass in a row, with what it took on a GPU, beside the same one of flash-linear-attention where there is one."""
    asked = lambda costs: gigabytes(sum(c.asked for c in costs))
    theirs = {(p.op, p.way): costs for p, costs in others}
    rows = []
    for p, costs in passes:
        total = {name: sum(c.floors()[name] for c in costs) for name in FLOORS}
        worst = max(costs, key=lambda c: max(c.floors().values()))
        by = sum(max(c.floors().values()) for c in costs if bound(c.floors()) == bound(worst.floors())) / least(costs)
        other, (_, took) = theirs.get((p.op, p.way)), measured.of(p, costs)
        rows.append([
            p.name, *((ms(took), f"{took / least(costs):.1f}") if took else ("", "")), measured.elsewhere(p), ms(least(costs)), ms(total["issue"]), ms(total["memory"]), asked(costs),
            f"{bound(worst.floors())} ({share(by)})", f"`{worst.kernel}`",
            *([ms(least(other)), ms(sum(c.floors()["issue"] for c in other)), asked(other)] if other else [""] * 3),
        ])  # fmt: skip
    head = [
        "pass",
        "measured ms",
        "x least",
        "others, measured",
        "least ms",
        "issue",
        "memory",
        "GB asked",
        "bound by",
        "most in",
        "FLA: least ms",
        "issue",
        "GB asked",
    ]
    return table(head if others else head[:10], [r if others else r[:10] for r in rows])


def lines(c, root, most=25):
    """The source's lines that issue the most."""

    def code(line):
        name, _, n = line.rpartition(":")
        path = root / "src" / name
        text = path.read_text().splitlines() if path.is_file() else []
        return (
            f"`{text[int(n) - 1].strip()[:90]}`".replace("|", "\\|") if int(n or 0) in range(1, len(text) + 1) else ""
        )

    rows = [
        [f"`{line}`", count(n / c.blocks), share(n / c.issued), code(line)] for line, n in c.by_line.most_common(most)
    ]
    head = ["line", "instructions", "share", ""]
    return f"**`{c.kernel}`**, of {count(c.issued / c.blocks)} instructions a block\n\n{table(head, rows)}"


def kinds(c):
    """Instructions of a block by what they do."""
    rows = [[kind, count(n / c.blocks), share(n / c.issued)] for kind, n in c.by_kind.most_common()]
    rows.append(["with a part of the lanes", count(c.parted / c.blocks), share(c.parted / c.issued)])
    passes = c.traffic["shared"] / max(c.traffic["least shared"], 1) - 1
    rows.append(["passes of shared memory", count(c.traffic["shared"] / c.blocks), f"{share(passes)} over the least"])
    for what in "load", "store":
        asked = 32 * c.traffic[what] / c.blocks
        rows.append([f"bytes asked of global memory by {what}s", count(asked), ""])
    return table(["", "a block", ""], rows)


def against(before, now):
    """Passes of two revisions: [(Pass, costs)] each."""
    old, rows = {p.name: costs for p, costs in before}, []
    for p, costs in now:
        was = old.get(p.name, [])
        whole = len(was) == len(costs)
        rows.append([f"**{p.name}**", ms(least(was)) if whole else "–", ms(least(costs)), "", "", "", ""])
        by_name = {}
        for c in was:
            by_name.setdefault(c.kernel, []).append(c)
        for c in costs:
            same = by_name.get(c.kernel)
            b = same.pop(0) if same else None
            if b and (b.issued, b.registers, b.asked) == (c.issued, c.registers, c.asked):
                continue
            if max(c.floors().values()) < SMALL * least(costs) and (not b or b.issued < 2 * c.issued):
                continue
            pair = lambda f: f"{f(b)} → {f(c)}" if b else f(c)
            rows.append([
                f"`{c.kernel}`", ms(max(b.floors().values())) if b else "–", ms(max(c.floors().values())),
                pair(lambda x: count(x.issued / x.blocks)), pair(lambda x: str(x.registers)),
                pair(lambda x: share(x.occupancy)), pair(lambda x: gigabytes(x.asked)),
            ])  # fmt: skip
        rows += [
            [f"`{c.kernel}`", ms(max(c.floors().values())), "gone", "", "", "", ""]
            for cs in by_name.values()
            for c in cs
        ]
    head = ["", "least ms before", "now", "instructions a block", "registers", "occupancy", "GB asked"]
    return table(head, rows)


DEVICE = (
    f"An H100 (SXM): {PROCESSORS} multiprocessors at {CLOCK / 1e9:g} GHz, {MEMORY / 1e12:g} TB/s. bf16; "
    "B = 8, T = 4096, H = 16, K = V = 64, chunks of 64; D = 1024, Mamba's N = 16; "
    "LSTM and sLSTM with B = 64, T = 512, D = 512."
)
