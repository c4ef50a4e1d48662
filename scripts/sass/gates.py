"""What must not fall back in the kernels that are made of tiles. Of each, by the machine code of one block: products on
tensor cores are as many as its formulas have; and instructions a product, occupancy and the share of 128-bit loads
are no worse than in gates.txt."""

from dataclasses import replace

RECORD = "scripts/sass/gates.txt"
C = 64  # rows and columns of a tile, and steps of a chunk
MMA = 16 * 8 * 16
# How much worse a number may be before it counts.
MORE_INSTRUCTIONS, LESS_WIDE = 1.02, 0.01


def product(depth=C, rows=C, columns=C):
    """Multiplications of a tile [rows, columns]: tensor cores take depth by 16."""
    return rows * columns * (-(-depth // 16) * 16)


def short(launch):
    """(the same with fewer steps, the block to walk, how many tiles or steps it has): enough to see what one costs."""
    name, at = launch.kernel, (launch.blocks // 2, 0, 0)
    if launch.module.endswith("flash.cu"):
        # The last blocks have the fewest tiles of keys, or of queries: the last sixteenth four at most.
        return launch, (launch.blocks * 15 // 16, 0, 0), 4
    if name.startswith("states") and launch.module.endswith("/chunk.cu"):
        t, *sizes, chunks = launch.args[-1]
        return replace(launch, args=[*launch.args[:-1], [4 * t // chunks, *sizes, 4]]), at, 4
    return launch, at, 1


def formula(of, launch, times):
    """The multiplications of a block, by the kernel's formulas (memories.cuh, erase_write/chunk.cu, flash.cu …)."""
    name, sizes = launch.kernel.removesuffix("_4").removesuffix("_8"), launch.args[-1]
    if name.startswith("lstm"):
        # h [16, D] by [D, 64], or dz [16, 4 D] by [4 D, 16], a step.
        d = of.sizes["H"] * of.sizes["K"]
        return of.sizes["T"] * (product(d, 16) if "forward" in name else product(4 * d, 16, 16))
    if launch.module.endswith("flash.cu"):
        # q k and p v; q k, do v and dx k; the same two, dxᵀ q and pᵀ do.
        products = {"forward": 2, "queries": 3, "keys": 4}[name.removeprefix("fading_").removeprefix("narrow_")]
        if launch.kernel.endswith("_8"):
            # Tiles of 128 rows; forward the rows of p are summed by a product with eight columns of ones.
            return times * (products * product(rows=128) + (product(rows=128, columns=8) if name.endswith("forward") else 0))
        return products * times * product()
    k, v = sizes[2], sizes[3]
    known = [] if "a gate a channel" in of.op else [product(k)]  # of scores, which `fade` has then
    # Pairs of blocks of 8, 16 and 32 steps. (What shorter ones take, threads add.)
    halves = 3
    through_halves = [product(16), product(16), product(32)]
    if launch.module.endswith("erase_write/chunk.cu"):
        channels = [product(v), *through_halves, product(v)]
        return sum({
            "fade_channels": halves * [product(k, C // 2, C // 2)],
            # K Kᵀ, X K, X V and, backward, K S.
            "prepare": [*known, product(), product(), *([product(k)] if of.way == "backward" else [])],
            # W S and Kᵀ E, of 32 columns.
            "states": 2 * times * [product(columns=32)],
            "outputs": [*known, product(k), product()],
            "through_outputs": [*known, product()],
            # K dS, Wᵀ dE and Qᵀ dO, of 32 columns.
            "states_backward": 3 * times * [product(columns=32)],
            "through_solve": [product()],
            # dP, dA; dO S, G S, E dS; dP K, dA K, dPᵀ Q, dAᵀ K; with a gate Q Kᵀ and K Kᵀ.
            "gradients": 5 * [product(v)] + 4 * [product()] + (2 * [product(k)] if launch.args[4][1] else []),
            "through_reads_channels": [*channels, product(v)],
            "through_erasing_channels": channels,
        }[name])  # fmt: skip
    return sum({
        "fade_channels": halves * [product(k, C // 2, C // 2)],
        # Of 32 columns.
        "states": times * [product(columns=32)],
        "states_backward": times * [product(columns=32)],
        "values_states": [product()],
        "cotangents_states": [product()],
        # Q Kᵀ, Q S, P V.
        "outputs": [*known, product(k), product()],
        # Q Kᵀ, K dS, Pᵀ dO.
        "values": [*known, product(k), product()],
        # dO Vᵀ; dO Sᵀ, G K; V dSᵀ, Gᵀ Q.
        "keys": 3 * [product(v)] + 2 * [product()],
        # dO Vᵀ, Q Kᵀ.
        "gates": [product(v), product(k)],
        # dO Vᵀ; the halves; dO Sᵀ, V dSᵀ.
        "keys_channels": [product(v), *through_halves, *2 * [product(v)]],
    }[name])  # fmt: skip


def measured(walker, passes):
    """{(op, way, kernel): (mma of a block, those of its formulas, instructions each, occupancy, share of 128-bit loads)}"""
    found = {}
    for of in passes:
        if of.dtype != "bf16" or of.sizes["chunk"] not in (0, C) or of.op.startswith("slstm"):
            continue
        if of.shorter:
            of = of.shorter[-1]
        for launch in of.launches:
            if not launch.kernel.endswith(("_4", "_8", "_grid")):
                continue
            less, block, times = short(launch)
            cost = walker.cost(less, warps=2, walked=[block])
            if cost.by_kind["mma"]:
                mma = cost.by_kind["mma"] / launch.blocks
                wide = round(cost.wide("load") or 0, 3)
                each = round(cost.issued / launch.blocks / mma, 1)
                key = of.op, of.way, launch.kernel
                found[key] = round(mma), formula(of, launch, times) / MMA, each, round(cost.occupancy, 3), wide
    return found


def table(found):
    """gates.txt"""
    lines = ["# op | pass | kernel | instructions an mma | occupancy | share of 128-bit loads"]
    lines += [" | ".join([*key, *(f"{x:g}" for x in row[2:])]) for key, row in found.items()]
    return "\n".join(lines) + "\n"


def read(text):
    rows = [row.split(" | ") for row in text.splitlines() if not row.startswith("#")]
    return {tuple(row[:3]): tuple(map(float, row[3:])) for row in rows}


def faults(found, before):
    """The numbers that have fallen back, as lines; and how many numbers are better than recorded."""
    wrong, better = [], 0
    for key, (mma, expected, each, occupancy, wide) in found.items():
        name = " ".join(key)
        if mma != expected:
            wrong.append(
                f"{name}: {mma} mma a block, its formulas have {expected:g}: if these have changed, so must gates.py"
            )
        if key not in before:
            wrong.append(f"{name}: is not in {RECORD}: add it by scripts/gpu_walk.sh --check --write")
            continue
        each0, occupancy0, wide0 = before[key]
        better += (each < each0 / MORE_INSTRUCTIONS) + (occupancy > occupancy0) + (wide > wide0 + LESS_WIDE)
        if each > each0 * MORE_INSTRUCTIONS:
            wrong.append(f"{name}: {each:g} instructions an mma, there were {each0:g}")
        if occupancy < occupancy0:
            wrong.append(f"{name}: an occupancy of {occupancy:.1%}, it was {occupancy0:.1%}")
        if wide < wide0 - LESS_WIDE:
            wrong.append(f"{name}: {wide:.1%} of loads are 128 bits wide, it was {wide0:.1%}")
    gone = [" ".join(key) for key in before if key not in found]
    wrong += [f"{name}: in {RECORD}, but not launched any more: scripts/gpu_walk.sh --check --write" for name in gone]
    return wrong, better
