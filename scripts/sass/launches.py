"""The launches of the main kernels, from the record that `scripts/gpu_walk.sh --record` makes (launches.txt): what
src/kernels/*/{cuda,device}.rs launch on a device of 132 processors, by examples/launches.rs over the emulator."""

import re
from dataclasses import dataclass, field

RECORD = "scripts/sass/launches.txt"
PARAMETERS = 0x210  # where sm_90 puts them in constant bank 0
FIRST = 1 << 36  # the walker's address of the first allocation; the next ones lie as far apart


@dataclass
class Launch:
    module: str
    dtype: str
    kernel: str
    grid: tuple
    block: tuple
    shared: int
    together: bool
    args: list = field(repr=False)  # (bytes, value), or a list of 8-byte values for a struct
    buffers: list = field(repr=False)  # the bytes of each allocation

    @property
    def blocks(self):
        x, y, z = self.grid
        return x * y * z

    @property
    def threads(self):
        x, y, z = self.block
        return x * y * z

    @property
    def sizes(self):
        """The bytes that each parameter takes."""
        return [8 * len(arg) if isinstance(arg, list) else arg[0] for arg in self.args]

    def walked(self):
        """The blocks to walk, which stand for all. Those of causal attention have the more tiles the further on they
        are; two in the middle have the mean."""
        middle = [n // 2 for n in self.grid]
        if self.module.endswith("flash.cu") and self.kernel.rpartition("_")[2].isdigit():
            return [(self.blocks // 2 - 1, 0, 0), (self.blocks // 2, 0, 0)]
        return [tuple(middle)]

    def constants(self):
        """Constant bank 0 of sm_90: sizes of block and grid, the stack, the parameters."""
        words = {4 * n: size for n, size in enumerate((*self.block, *self.grid))} | {0x28: 0xFFFDC0}
        at = PARAMETERS

        def put(size, value):
            nonlocal at
            at = (at + size - 1) // size * size
            for n in range(0, size, 4):
                words[at + n] = value >> 8 * n & 0xFFFFFFFF
            at += size

        for arg in self.args:
            for size, value in [(8, value) for value in arg] if isinstance(arg, list) else [arg]:
                put(size, value)
        return words


@dataclass
class Pass:
    """The launches of an op, forward or backward."""

    op: str
    way: str
    dtype: str
    sizes: dict
    launches: list = field(default_factory=list)
    # The same at lesser T, if the whole is too long to walk: its cost follows from two.
    shorter: list = field(default_factory=list)

    @property
    def name(self):
        return f"{self.op} {self.way}"


def axes(text):
    x, *more = map(int, text.split(","))
    y, z = more or (1, 1)
    return x, y, z


def launch(row):
    head, _, tail = row.partition(": ")
    module, dtype, kernel, _, grid, _, block, _, shared, *together = head.split()
    args, buffers = [], {}
    for arg in tail.split():
        if arg[0] == "[":
            args.append([int(n) for n in arg.strip("[]").split(",")])
        elif found := re.fullmatch(r"p(\d+)(?:\+(\d+))?/(\d+)", arg):
            n, offset, size = int(found[1]), int(found[2] or 0), int(found[3])
            buffers[n] = size
            args.append((8, FIRST * (n + 1) + offset))
        else:
            args.append(({"i": 8, "w": 4}[arg[0]], int(arg[1:])))
    sizes = [buffers[n] for n in sorted(buffers)]
    return Launch(module, dtype, kernel, axes(grid), axes(block), int(shared), bool(together), args, sizes)


def read(text):
    """The passes of a record; those of an op at lesser T are with the one at the greatest."""
    passes = []
    for row in text.splitlines():
        if row.startswith("# "):
            op, way, about = (part.strip() for part in row[2:].split(" | "))
            dtype, *sizes = about.split()
            sizes = {name: int(n) for name, n in (size.split("=") for size in sizes)}
            passes.append(Pass(op, way, dtype, sizes))
        elif row and passes:
            passes[-1].launches.append(launch(row))
    whole = {}
    for p in sorted(passes, key=lambda p: -p.sizes["T"]):
        whole.setdefault((p.op, p.way, p.dtype), p).shorter.append(p)
    for p in whole.values():
        p.shorter = p.shorter[1:]
    return [p for p in passes if whole[p.op, p.way, p.dtype] is p]
