"""What a launch costs, counted by walking some of its warps, and the least times that follow on an H100 (SXM)."""

import collections
from dataclasses import dataclass, field

from . import compile, listing
from .launches import FIRST
from .warp import Warp

ARCH = "sm_90"
# Multiprocessors, of four schedulers that issue an instruction a clock; the clock in Hz; bytes a second of memory.
PROCESSORS, SCHEDULERS, CLOCK, MEMORY = 132, 4, 1.755e9, 3.35e12
# Of a multiprocessor: registers of a scheduler's warps, shared memory and what a block takes of it besides its own,
# warps, blocks.
REGISTERS, SHARED, OVERHEAD, WARPS, BLOCKS = 16384, 228 << 10, 1 << 10, 64, 32
# A clock of a multiprocessor: multiplications on tensor cores, functions (exp, 1/x …), passes of shared memory.
TENSOR, FUNCTIONS, PASSES = 2048, 16, 1
# Instructions to walk of a launch, about: all warps of a block if they are short, else two.
WALK = 200_000


@dataclass
class Cost:
    """The cost of a whole launch, in numbers that add up."""

    kernel: str
    registers: int
    shared: int
    spilled: int
    blocks: int
    threads: int
    resident: int  # blocks that a multiprocessor holds
    by_kind: collections.Counter = field(default_factory=collections.Counter)
    by_line: collections.Counter = field(default_factory=collections.Counter)
    # 'load', 'store': sectors asked of global memory; 'shared': passes of shared memory; and 'least shared'.
    traffic: collections.Counter = field(default_factory=collections.Counter)
    distinct: float = 0  # bytes of global memory that are touched
    products: float = 0  # multiplications on tensor cores
    longest: float = 0  # instructions of a warp
    chain: float = 0  # clocks of a warp by itself (chain.py)
    parted: float = 0  # instructions that only some of a warp's lanes were at

    @property
    def issued(self):
        return sum(self.by_kind.values())

    @property
    def occupancy(self):
        return self.resident * -(-self.threads // 32) / WARPS

    @property
    def waves(self):
        return self.blocks / (self.resident * PROCESSORS)

    @property
    def asked(self):
        return 32 * (self.traffic["load"] + self.traffic["store"])

    def floors(self):
        """{what bounds it: the least time in ms}"""
        # A grid that does not fill the device is as slow as one block.
        busy = min(PROCESSORS, self.blocks)
        issue = max(self.issued / (busy * SCHEDULERS), self.longest)
        per = busy * CLOCK / 1e3
        return {
            "issue": issue / CLOCK * 1e3,
            "memory": self.distinct / MEMORY * 1e3,
            "tensor cores": self.products / (TENSOR * per),
            "shared memory": self.traffic["shared"] / (PASSES * per),
            "functions": 32 * self.by_kind["mufu"] / (FUNCTIONS * per),
            # Blocks for which there is no room come one after another.
            "serial chain": self.chain * max(1, self.waves) / CLOCK * 1e3,
        }

    def wide(self, what):
        """The share of 128-bit accesses among those to global memory: 'load' or 'store'."""
        all_ = sum(n for kind, n in self.by_kind.items() if kind.startswith(f"{what} "))
        return self.by_kind[f"{what} 128"] / all_ if all_ else None


def resident(registers, shared, threads):
    """How many blocks a multiprocessor holds."""
    warps = -(-threads // 32)
    of_scheduler = REGISTERS // (-(-max(registers, 1) // 8) * 8 * 32)
    return min(SCHEDULERS * of_scheduler // warps, SHARED // (shared + OVERHEAD), WARPS // warps, BLOCKS)


def multiplied(op):
    """The multiplications of an instruction, from its shape: HMMA.16816, HGMMA.64x64x16."""
    parts = op.split(".")
    if parts[0] == "HGMMA":
        m, n, k = map(int, parts[1].split("x"))
        return m * n * k // 4  # of four warps together
    return {"16816": 16 * 8 * 16, "1688": 16 * 8 * 8}.get(parts[1], 0) if parts[0] == "HMMA" else 0


def walk(launch, kernel, use, warps=None, walked=None):
    """The cost of a launch of this Kernel, from some warps of some blocks."""
    shared = use["shared"] + launch.shared
    c = Cost(launch.kernel, use["registers"], shared, use["spilled"], launch.blocks, launch.threads, 0)
    c.resident = resident(c.registers, shared, launch.threads)
    walker, all_warps = Warp(kernel, launch.constants(), launch.block), -(-launch.threads // 32)
    blocks = walked or launch.walked()
    first = walker.run(blocks[0], 0)
    chains = [walker.clock.now]
    count = warps or min(all_warps, max(2, WALK // (len(blocks) * first)))
    chosen = sorted({n * all_warps // count + n % 2 * (all_warps // count - 1) for n in range(count)})
    lengths = [first]
    for index, warp in [(index, warp) for index in blocks for warp in chosen if (index, warp) != (blocks[0], 0)]:
        lengths.append(walker.run(index, warp))
        chains.append(walker.clock.now)
    # Of those walked, to all.
    scale = launch.blocks / len(blocks) * all_warps / len(chosen)
    c.longest, c.chain, c.parted = max(lengths), max(chains), walker.parted * scale
    for ins, n in zip(kernel.code, walker.issued):
        if n:
            c.by_kind[ins.kind] += n * scale
            c.by_line[ins.line] += n * scale
            c.products += n * scale * multiplied(ins.op)
    for (_, space), (_, amount, least) in walker.memory.items():
        c.traffic[space] += amount * scale
        if space == "shared":
            c.traffic["least shared"] += least * scale
    for sectors in walker.loaded, walker.stored:
        per_buffer = collections.Counter((sector * 32) // FIRST - 1 for sector in sectors)
        for buffer, n in per_buffer.items():
            bound = launch.buffers[buffer] if 0 <= buffer < len(launch.buffers) else float("inf")
            c.distinct += min(32 * n * scale, bound)
    return c


def extended(short, long, steps):
    """The cost at more steps than `long` is of: so many times those between `short` and `long`, as it grows evenly."""
    c = Cost(long.kernel, long.registers, long.shared, long.spilled, long.blocks, long.threads, long.resident)
    grown = lambda x, y: y + (y - x) * steps
    for name in "by_kind", "by_line", "traffic":
        a, b = getattr(short, name), getattr(long, name)
        getattr(c, name).update({key: grown(a[key], b[key]) for key in b})
    for name in "distinct", "products", "longest", "chain", "parted":
        setattr(c, name, grown(getattr(short, name), getattr(long, name)))
    return c


class Walker:
    """Costs of launches of the sources under `root`."""

    def __init__(self, root, sizes=None):
        self.root, self.kernels, self.known = root, {}, {}
        # Of kernels for several tiles, those that are launched.
        self.sizes = sizes

    def kernel(self, launch):
        """(Kernel, what it takes)"""
        key = launch.module, launch.dtype
        if key not in self.kernels:
            done = compile.compiled(self.root, launch.module, launch.dtype, ARCH, self.sizes)
            self.kernels[key] = listing.parse(done.listing), done.uses
        kernels, uses = self.kernels[key]
        if launch.kernel not in kernels:
            raise LookupError(f"{launch.module} has no kernel '{launch.kernel}'")
        if uses[launch.kernel]["parameters"] != launch.sizes:
            raise LookupError(f"{launch.module}: '{launch.kernel}' has other parameters than in the record of launches")
        return kernels[launch.kernel], uses[launch.kernel]

    def cost(self, launch, **how):
        key = repr((launch, launch.args, launch.buffers, how))
        if key not in self.known:
            self.known[key] = walk(launch, *self.kernel(launch), **how)
        return self.known[key]

    def costs(self, of):
        """The costs of the launches of a Pass."""
        if not of.shorter:
            return [self.cost(launch) for launch in of.launches]
        long, short = of.shorter[:2]
        steps = (of.sizes["T"] - long.sizes["T"]) / (long.sizes["T"] - short.sizes["T"])
        costs = []
        for a, b, launch in zip(short.launches, long.launches, of.launches):
            # Only what goes through all steps in one launch is too long to be walked whole.
            costs.append(extended(self.cost(a), self.cost(b), steps) if launch.together else self.cost(launch))
            costs[-1].blocks = launch.blocks
        return costs
