"""How long a warp takes by itself: its instructions issue in order, each when there is what it reads. That is no less than the
longest chain of instructions that wait for one another, once for each time around a loop.

Latencies are in clocks, rounded down, of published measurements: memory, shared memory and tensor cores of an H100 by Luo et
al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking", arXiv:2402.13499; arithmetic
and functions of an A100 by Abdelkhalik et al., "Demystifying the Nvidia Ampere Architecture through Microbenchmarking and
Instruction-level Analysis", arXiv:2208.11174. A read is as from the device's second cache, from the first one if this block
read there before. docs/gpu.md says what they were compared with. Barriers are free: other warps are
taken to be there."""

import re

ARITHMETIC, FUNCTION, SHUFFLE, SHARED, FIRST_CACHE, SECOND_CACHE = 4, 18, 23, 29, 40, 260
LATENCY = {"MUFU": FUNCTION, "I2F": FUNCTION, "F2I": FUNCTION, "F2F": FUNCTION, "SHFL": SHUFFLE} | {
    name: SHARED for name in ("LDS", "LDSM")
}
MMA = {"16816": 32, "1688": 17}  # HMMA.16816
STORES = ("STG", "STS", "ST", "STL", "STSM", "RED", "LDGSTS")
CONTROL = (
    "BRA", "EXIT", "RET", "CALL", "BSSY", "BSYNC", "BREAK", "BAR", "NOP", "DEPBAR", "LDGDEPBAR", "WARPSYNC",
    "MEMBAR", "CCTL", "ERRBAR", "BRX", "YIELD", "NANOSLEEP", "ENDCOLLECTIVE", "FENCE", "SYNCS", "ARRIVES",
)  # fmt: skip
REGISTER = re.compile(r"(?<![A-Z])(UR|R|UP|P)(\d+)(\.64)?")
PREDICATE = re.compile(r"U?P(\d|T)")


def registers(operand, width=1):
    """The registers of an operand, as numbers: (first letters, number)."""
    for kind, n, pair in REGISTER.findall(operand):
        wide = 2 if pair or operand.startswith("desc[") and kind == "UR" else width if kind in ("R", "UR") else 1
        yield from ((kind, int(n) + i) for i in range(wide))


def widths(ins):
    """How many registers the result and the operands take: (result, [operand, …])"""
    flags = ins.op.split(".")
    if ins.name == "HMMA":
        return 4, [4, 2, 4] if flags[1] == "16816" else [2, 1, 4]
    if ins.name == "LDSM":
        return int(flags[-1]) if flags[-1] in "124" else 1, []
    wide = 4 if "128" in flags else 2 if "64" in flags else 1
    if ins.name in ("LDG", "LD", "LDS", "LDL", "LDC", "ULDC"):
        return wide, []
    if ins.name in STORES:
        return 0, [1, wide] if ins.name != "LDGSTS" else []
    if ins.name in ("IMAD", "UIMAD") and "WIDE" in flags:
        return 2, [1, 1, 2]
    return (2, [2, 2, 2]) if re.fullmatch("D(ADD|MUL|FMA)", ins.name) else (2, []) if "CS2R" == ins.name else (1, [])


def reads_and_writes(ins):
    """([register], [register])"""
    result, operands = widths(ins)
    args, count = ins.args, 0
    if ins.name not in STORES + CONTROL and args:
        # Predicates that are written stand behind the first operand, or in front of it.
        most = 2 if "SETP" in ins.name or "PLOP3" in ins.name or ins.name == "VOTE" else 3
        count = 1
        while count < min(most, len(args)) and PREDICATE.fullmatch(args[count]):
            count += 1
        if ins.name in ("LOP3", "SHFL", "ATOMG", "ULOP3", "MATCH") and PREDICATE.fullmatch(args[0]):
            count = 2
    writes = [r for arg in args[:count] for r in registers(arg, result)]
    reads = list(registers(ins.predicate))
    for n, arg in enumerate(args[count:]):
        reads += registers(arg, operands[n] if n < len(operands) else 1)
    if ins.name == "P2R":
        reads += [("P", n) for n in range(7)]
    if ins.name == "R2P":
        writes = [("P", n) for n in range(7)]
    return reads, writes


class Clock:
    """A warp's time. Of each of its `code`, which registers it reads and writes is found once."""

    def __init__(self, code):
        self.code, self.known, self.index = code, [None] * len(code), {}
        self.start()

    def start(self):
        self.now, self.ready = 0, [0] * 1024  # when each register is there
        self.copies, self.groups = 0, []  # copies to shared memory under way, and those of groups before

    def find(self, at):
        ins = self.code[at]
        number = lambda r: self.index.setdefault(r, len(self.index))
        reads, writes = ([number(r) for r in rs] for rs in reads_and_writes(ins))
        latency = MMA.get(ins.op.split(".")[1], 0) if ins.name == "HMMA" else LATENCY.get(ins.name, ARITHMETIC)
        kind = "read" if ins.name in ("LDG", "LD", "ATOMG") else ins.name if ins.name in ("LDGSTS", "LDGDEPBAR", "DEPBAR") else ""
        self.known[at] = reads, writes, latency, kind
        return self.known[at]

    def issue(self, at, again):
        """The instruction is issued; `again`: whether it reads what this block has read before."""
        reads, writes, latency, kind = self.known[at] or self.find(at)
        ready, now = self.ready, self.now + 1
        for r in reads:
            if ready[r] > now:
                now = ready[r]
        if kind:
            if kind in ("read", "LDGSTS"):
                latency = FIRST_CACHE if again else SECOND_CACHE
            if kind == "LDGSTS":
                self.copies = max(self.copies, now + latency)
            elif kind == "LDGDEPBAR":
                self.groups.append(self.copies)
            elif kind == "DEPBAR":
                left = int((self.code[at].args + ["0x0"])[1], 16)  # groups that may be under way
                now = max([now, *self.groups[: len(self.groups) - left]])
                self.groups = self.groups[len(self.groups) - left :] if left else []
        for r in writes:
            ready[r] = now + latency
        self.now = now
