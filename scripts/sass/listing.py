"""nvdisasm's text as kernels of instructions, and what kind of work each instruction is."""

import re
from dataclasses import dataclass, field

INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,6})\*/\s+(?:\{\s*)?(?:@(!?U?P\w+)\s+)?([A-Z][A-Za-z0-9_.]*)(.*?);")
LINE = re.compile(r'//## File "([^"]*)", line (\d+)')
FP = ("F", "DADD", "DMUL", "DFMA", "DSETP", "DMNMX", "HADD2", "HMUL2", "HFMA2", "HSETP2", "HMNMX2", "HSET2")
NOT_FP = ("FLO", "FENCE")


@dataclass
class Instruction:
    address: int
    predicate: str  # such as '!P0', or empty
    op: str  # such as 'LDG.E.U16'
    args: list
    line: str  # such as 'cuda/tiles.cuh:83'

    @property
    def name(self):
        return self.op.split(".")[0]

    @property
    def kind(self):
        return kind(self.op, self.args)


@dataclass
class Kernel:
    name: str
    code: list = field(default_factory=list)
    # {label: index into the code}
    labels: dict = field(default_factory=dict)


def bits(op):
    """How many bits of each lane a load or a store moves."""
    for part in op.split(".")[1:]:
        if part in ("U8", "S8", "U16", "S16", "64", "128"):
            return int(part.strip("US"))
    return 32


def kind(op, args=()):
    """The kind that an instruction is counted as. `int` is all integer arithmetic, moves and control."""
    name = op.split(".")[0]
    if name in ("HMMA", "HGMMA", "IMMA", "DMMA", "QGMMA", "IGMMA"):
        return "mma"
    if name in ("LDSM", "STSM"):
        return {"LDSM": "ldmatrix", "STSM": "stmatrix"}[name]
    if name in ("LDG", "LD", "LDGSTS"):
        return f"load {bits(op)}"
    if name in ("STG", "ST"):
        return f"store {bits(op)}"
    if name in ("LDS", "STS"):
        return f"shared {'load' if name == 'LDS' else 'store'} {bits(op)}"
    if name in ("LDL", "STL"):
        return "local"
    if name in ("MUFU", "SHFL"):
        return {"MUFU": "mufu", "SHFL": "shuffle"}[name]
    if name in ("BAR", "SYNCS"):
        return "barrier"
    if name.startswith(("RED", "ATOM")) and name != "REDUX":
        return "atomic"
    if name.startswith(FP) and name not in NOT_FP:
        # The half-precision unit also sets registers to constants: 0 * 0 + constant.
        return "int" if name == "HFMA2" and args[1:2] == ["-RZ"] else "fp"
    return "int"


def split(text):
    """Operands, at the commas that are in no bracket."""
    return [part.strip() for part in re.split(r",(?![^\[(]*[\])])", text) if part.strip()]


def parse(text):
    """{name: Kernel} of a listing."""
    kernels, kernel, line = {}, None, ""
    for row in text.splitlines():
        if row.startswith(".text."):
            kernel, line = Kernel(row[6:].rstrip(":")), ""
            kernels[kernel.name] = kernel
        elif kernel is None:
            continue
        elif re.match(r"\s*\.section", row):
            kernel = None
        elif found := re.match(r"(\.L_\w+|\$[\w$]+):", row):
            kernel.labels[found[1]] = len(kernel.code)
        elif found := LINE.search(row):
            line = f"{re.split('/src/|/fla/', found[1])[-1]}:{found[2]}"
        elif found := INSTRUCTION.match(row):
            address, predicate, op, args = found.groups()
            args = [arg.replace(".reuse", "") for arg in split(args)]
            kernel.code.append(Instruction(int(address, 16), predicate or "", op, args, line))
    return kernels
