"""What instructions read and write: functions that give or take 32 lanes of a register, a predicate, a constant or an
address. Lanes, and what predicates hold, are bits of an integer."""

import re

import numpy as np

LANES, FULL = 32, 0xFFFFFFFF
U32, U64, I32, I64 = np.uint32, np.uint64, np.int32, np.int64
LANE = np.arange(LANES, dtype=U32)
ONE, ONE_BF16, ONE_DOUBLE = U32(0x3F800000), U32(0x3F80), 0x3FF00000
ZERO, UNIFORM, NOWHERE, ROWS = 255, 256, 330, 331  # rows of the register file: RZ, UR0, and what is written to RZ


class Unknown(Exception):
    """An instruction that this file does not know."""


_arrays = {}


def lanes(mask):
    """The bits as an array of booleans."""
    if mask not in _arrays:
        _arrays[mask] = np.unpackbits(np.array([mask], "<u4").view(np.uint8), bitorder="little").astype(bool)
    return _arrays[mask]


def bits_of(array):
    return int.from_bytes(np.packbits(array, bitorder="little").tobytes(), "little")


def floats(x):
    return x.view(np.float32)


class Operands:
    """The operands of a warp: registers `r` (32 lanes in a row), predicates `p`, `constants` {offset: 32-bit word} of bank 0."""

    def row(self, text, write=False):
        """The row of a register."""
        name = text.split(".")[0]
        if name in ("RZ", "URZ", "SRZ"):
            return NOWHERE if write else ZERO
        return int(name[1:]) if name[0] == "R" else UNIFORM + int(name[2:])

    def number(self, text):
        """A function that gives a 32-bit operand."""
        sign = re.match(r"[-~|]*(?=[URc|])", text)
        sign = sign[0] if sign else ""
        name = text[len(sign) :].rstrip("|")
        if name.startswith("c["):
            value = np.full(LANES, self.constant(name), U32)
            read = lambda: value
        elif re.match(r"U?R(\d|Z)", name):
            row, r = self.row(name), self.r
            read = lambda: r[row]
        elif re.fullmatch(r"-?(0x[0-9a-f]+|\d+)", text):
            value = np.full(LANES, int(text, 0) & FULL, U32)
            return lambda: value
        else:  # a float
            value = np.full(LANES, self.immediate(text), np.float32).view(U32)
            return lambda: value
        if "~" in sign:
            return lambda: ~read()
        return (lambda: -read()) if "-" in sign else read

    def wide(self, text):
        """The same in 64 bits, to see what is carried: minus x is ~x + 1, which carries for 0."""
        if text[0] == "-" and not text[1].isdigit():
            plain = self.number(text[1:])
            return lambda: (~plain()).astype(U64) + U64(1)
        plain = self.number(text)
        return lambda: plain().astype(U64)

    def pair(self, text):
        """A 64-bit operand: a register and the next."""
        name = text.lstrip("-").removesuffix(".64")
        if name.startswith("c["):
            low, high = self.constant(name), self.constant(name, 4)
            value = np.full(LANES, low | high << 32, U64)
            return lambda: value
        if re.match(r"U?R\d", name):
            row, r = self.row(name), self.r
            return lambda: r[row].astype(U64) | r[row + 1].astype(U64) << U64(32)
        value = np.full(LANES, 0 if name in ("RZ", "URZ") else int(text, 0) & (2**64 - 1), U64)
        return lambda: value

    def constant(self, text, more=0):
        bank, offset = re.fullmatch(r"c\[(0x\w+)\]\[(\w+)\]", text).groups()
        return 0 if bank != "0x0" else self.constants.get((0 if offset in ("RZ", "URZ") else int(offset, 16)) + more, 0)

    @staticmethod
    def immediate(text):
        return float(text.strip("|").replace("QNAN", "nan").replace("INF", "inf"))

    def float_of(self, text):
        """A function that gives a float operand."""
        read, bare = self.number(text.strip("-|")), text.lstrip("-")
        value = lambda: floats(read())
        if bare[0] == "|":
            inner = value
            value = lambda: np.abs(inner())
        if text[0] == "-":
            other = value
            return lambda: -other()
        return value

    def flag(self, text):
        """A function that gives a predicate."""
        name, p = text.lstrip("!"), self.p
        at = self.flag_at(name)
        return (lambda: p[at] ^ FULL) if text[0] == "!" else (lambda: p[at])

    @staticmethod
    def flag_at(name):
        base = 8 if name[0] == "U" else 0
        return base + (7 if name.endswith("PT") else int(name[-1]))

    @staticmethod
    def is_flag(text):
        return re.fullmatch(r"!?U?P(T|\d)", text) is not None

    def put(self, text):
        """A function that writes a register in the active lanes; a uniform one has no lanes."""
        row, r = self.row(text, write=True), self.r
        target = r[row]

        def write(mask, value):
            if mask == FULL or row >= UNIFORM:
                target[:] = value
            else:
                np.copyto(target, value, where=lanes(mask))

        return write

    def put_pair(self, text):
        low = self.put(text)
        high = self.put("RZ" if text in ("RZ", "URZ") else re.sub(r"\d+", lambda n: str(int(n[0]) + 1), text))

        def write(mask, value):
            low(mask, value.astype(U32))
            high(mask, (value >> U64(32)).astype(U32))

        return write

    def put_flag(self, name):
        at, p = self.flag_at(name), self.p
        if at in (7, 15):
            return lambda mask, value: None

        def write(mask, value):
            p[at] = value if at > 7 else p[at] & ~mask | value & mask

        return write

    def address(self, text):
        """A function that gives the sum in the last brackets, in 64 bits."""
        parts = []
        for part in re.findall(r"[+-]*[^+\-\[\]]+", re.sub(r"^desc\[\w+\]", "", text)):
            name = part.lstrip("+")
            if name.endswith(".64"):
                parts.append(self.pair(name))
            elif times := re.fullmatch(r"(U?R\w+)\.X(\d+)", name):
                parts.append(lambda read=self.number(times[1]), by=U64(times[2]): read().astype(U64) * by)
            elif name[0] in "UR":
                parts.append(lambda read=self.number(name.removesuffix(".U32")): read().astype(U64))
            else:
                value = np.full(LANES, int(name, 16) & (2**64 - 1), U64)
                parts.append(lambda value=value: value)
        if len(parts) == 1:
            return parts[0]
        if len(parts) == 2:
            first, second = parts
            return lambda: first() + second()
        return lambda: sum((part() for part in parts[1:]), parts[0]())

    def flags_behind(self, args):
        """Predicates that follow the first operand: the carries."""
        count = 0
        while count < len(args) and self.is_flag(args[count]):
            count += 1
        return [self.put_flag(a) for a in args[:count]], args[count:]
