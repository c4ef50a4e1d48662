"""What each instruction of sm_90 does to integers, addresses and predicates, and what is counted of its accesses to
memory. A method `_NAME` makes of the operands of instruction NAME a function of the active lanes."""

import re

import numpy as np

from .listing import bits
from .operands import (
    FULL, I32, I64, LANE, LANES, NOWHERE, ONE, ONE_BF16, ONE_DOUBLE, U32, U64,
    Operands, Unknown, bits_of, floats, lanes,
)  # fmt: skip

_wavefronts = {}


def wavefronts(addresses, mask, size):
    """(how many passes shared memory takes for accesses of `size` bytes, and for so many bytes without conflicts)"""
    first = int(addresses[0])
    key = ((addresses - addresses[0]).tobytes(), first & 127, mask, size)
    if key not in _wavefronts:
        per, active, passes, least = max(1, size // 4), lanes(mask), 0, 0
        # Wide accesses go in parts of the warp, of which each takes all banks once.
        for part in range(per):
            of = active & (LANE * per // LANES == part)
            if of.any():
                words = np.unique((addresses[of, None].astype(I64) // 4 + np.arange(per)).ravel())
                passes, least = passes + int(np.bincount(words % 32).max()), least + 1
        _wavefronts[key] = passes, least
    return _wavefronts[key]


class Instructions(Operands):
    """The instructions of a warp, which also has `special` registers, {name: 32 lanes}, and counts in `memory`."""

    # --- Integers. ---

    def _IADD3(self, flags, args):
        d, (carry, rest) = self.put(args[0]), self.flags_behind(args[1:])
        if not carry and "X" not in flags:
            x, y, z = map(self.number, rest[:3])
            if rest[2] == "RZ":
                return lambda m: d(m, x() + y())
            return lambda m: d(m, x() + y() + z())
        x, y, z = map(self.wide, rest[:3])
        more = [self.flag(a) for a in rest[3:]] if "X" in flags else []

        def run(m):
            sums = x() + y() + z()
            for flag in more:
                sums = sums + lanes(flag())
            d(m, sums.astype(U32))
            over = sums >> U64(32)
            for n, put in enumerate(carry):
                put(m, bits_of(over > n))

        return run

    def _VIADD(self, flags, args):
        d, x, y = self.put(args[0]), self.number(args[1]), self.number(args[2])
        return lambda m: d(m, x() + y())

    def ordered(self, flags):
        """How numbers compare."""
        return (lambda x: x) if "U32" in flags else (lambda x: x.view(I32))

    def least_or_most(self, flags, d, x, y, flag):
        as_ = self.ordered(flags)

        def run(m):
            a, b = as_(x()), as_(y())
            d(m, np.where(lanes(flag()), np.minimum(a, b), np.maximum(a, b)).view(U32))

        return run

    def _VIMNMX(self, flags, args):
        x, y = self.number(args[1]), self.number(args[2])
        return self.least_or_most(flags, self.put(args[0]), x, y, self.flag(args[3]))

    _IMNMX = _VIMNMX

    def _VIADDMNMX(self, flags, args):
        x, y, z = map(self.number, args[1:4])
        return self.least_or_most(flags, self.put(args[0]), lambda: x() + y(), z, self.flag(args[4]))

    def _IMAD(self, flags, args):
        (carry, rest) = self.flags_behind(args[1:])
        if "WIDE" not in flags and "HI" not in flags:
            d, (x, y, z) = self.put(args[0]), map(self.number, rest[:3])
            if "MOV" in flags:
                return lambda m: d(m, z())
            if "IADD" in flags:
                return lambda m: d(m, x() + z())
            if "X" in flags:
                flag = self.flag(rest[3])
                return lambda m: d(m, x() * y() + z() + lanes(flag()))
            if rest[2] == "RZ":
                return lambda m: d(m, x() * y())
            return lambda m: d(m, x() * y() + z())
        x, y, z = self.number(rest[0]), self.number(rest[1]), self.pair(rest[2])
        grown = (lambda v: v.astype(U64)) if "U32" in flags else (lambda v: v.view(I32).astype(I64).view(U64))
        more = self.flag(rest[3]) if "X" in flags else None
        d = self.put_pair(args[0]) if "WIDE" in flags else self.put(args[0])
        high = "HI" in flags

        def run(m):
            base = z()
            sums = grown(x()) * grown(y()) + base
            if more:
                sums = sums + lanes(more())
            d(m, (sums >> U64(32)).astype(U32) if high else sums)
            for put in carry:
                put(m, bits_of(sums < base))

        return run

    def _LEA(self, flags, args):
        d, (carry, rest) = self.put(args[0]), self.flags_behind(args[1:])
        x, y = self.number(rest[0]), self.wide(rest[1])
        if "HI" not in flags:
            # A subtrahend is shifted first: it is carried for 0 too, as in `wide`.
            minus, by = rest[0][0] == "-", U32(int(rest[2], 16))
            x, rest = self.number(rest[0].lstrip("-")), rest[3:]
            shifted = lambda: x() << by
            value = (lambda: (~shifted()).astype(U64) + U64(1)) if minus else lambda: shifted().astype(U64)
        else:
            if "SX32" in flags:
                above, by, rest = lambda: (x().view(I32) >> I32(31)).view(U32), int(rest[2], 16), rest[3:]
            else:
                above, by, rest = self.number(rest[2]), int(rest[3], 16), rest[4:]
            right = U64(32 - by)
            value = lambda: (x().astype(U64) | above().astype(U64) << U64(32)) >> right & U64(FULL)
        more = [self.flag(a) for a in rest] if "X" in flags else []

        def run(m):
            sums = value() + y()
            for flag in more:
                sums = sums + lanes(flag())
            d(m, sums.astype(U32))
            for put in carry:
                put(m, bits_of(sums >> U64(32) != 0))

        return run

    def _SHF(self, flags, args):
        d, (x, n, y) = self.put(args[0]), map(self.number, args[1:4])
        whole, signed, high = bool({"U64", "S64"} & set(flags)), bool({"S32", "S64"} & set(flags)), "HI" in flags
        if "W" in flags:
            given = n
            n = lambda: given() & U32(63 if whole else 31)
        # A shift by the width, or more, leaves nothing, or the sign.
        by = lambda most: np.minimum(n(), U32(most))
        both = lambda: x().astype(U64) | y().astype(U64) << U64(32)
        if "L" in flags:
            if whole or high:
                return lambda m: d(m, (both() << by(63).astype(U64) >> U64(32)).astype(U32))
            return lambda m: d(m, (x().astype(U64) << by(32).astype(U64)).astype(U32))
        if not high:
            if signed:
                return lambda m: d(m, (both().view(I64) >> by(63).astype(I64)).astype(U32))
            return lambda m: d(m, (both() >> by(63).astype(U64)).astype(U32))
        if whole:
            if signed:
                return lambda m: d(m, (both().view(I64) >> by(63).astype(I64) >> I64(32)).astype(U32))
            return lambda m: d(m, (both() >> by(63).astype(U64) >> U64(32)).astype(U32))
        if signed:
            return lambda m: d(m, (y().view(I32) >> by(31).view(I32)).view(U32))
        return lambda m: d(m, (y().astype(U64) >> by(32).astype(U64)).astype(U32))

    def _LOP3(self, flags, args):
        out, rest = self.flags_behind(args)
        d, (x, y, z), table = self.put(rest[0]), map(self.number, rest[1:4]), int(rest[4], 16)

        def of_two(four):
            """f(x, y) whose value for bits (x, y) is bit 2x + y of `four`."""
            known = {
                0b0000: lambda: U32(0) * x(), 0b1111: lambda: ~(U32(0) * x()), 0b1000: lambda: x() & y(),
                0b1110: lambda: x() | y(), 0b0110: lambda: x() ^ y(), 0b0100: lambda: x() & ~y(),
                0b0010: lambda: ~x() & y(), 0b1100: x, 0b1010: y, 0b0011: lambda: ~x(),
                0b0101: lambda: ~y(), 0b1101: lambda: x() | ~y(),
                0b1011: lambda: ~x() | y(), 0b0111: lambda: ~(x() & y()), 0b0001: lambda: ~(x() | y()),
                0b1001: lambda: ~(x() ^ y()),
            }  # fmt: skip
            return known[four]

        without = of_two(sum((table >> 2 * n & 1) << n for n in range(4)))  # where the bit of z is 0
        with_ = of_two(sum((table >> (2 * n + 1) & 1) << n for n in range(4)))
        if rest[3] == "RZ" or rest[3] == "URZ":
            value = without
        else:
            value = lambda: (with_() & (third := z())) | (without() & ~third)

        def run(m):
            result = value()
            d(m, result)
            for put in out:
                put(m, bits_of(result != 0))

        return run if out else lambda m: d(m, value())

    def _PLOP3(self, flags, args):
        first, second = self.put_flag(args[0]), self.put_flag(args[1])
        sources, tables = [self.flag(a) for a in args[2:5]], [int(a, 16) for a in args[5:7]]

        def run(m):
            x, y, z = (f() for f in sources)
            for put, table in zip((first, second), tables):
                result = 0
                for n in range(8):
                    if table >> n & 1:
                        result |= (x if n & 4 else ~x) & (y if n & 2 else ~y) & (z if n & 1 else ~z)
                put(m, result & FULL)

        return run

    # For floats, U means that the comparison is true of NaN.
    COMPARE = {
        "GE": np.greater_equal, "GT": np.greater, "LE": np.less_equal, "LT": np.less,
        "EQ": np.equal, "NE": np.not_equal,
    }  # fmt: skip
    COMPARE |= {f"{name}U": compare for name, compare in COMPARE.items()}

    def combined(self, flags, args, others):
        """The predicates that a comparison writes: its result and, to a second predicate, its contrary, with a third."""
        first, second, third = self.put_flag(args[0]), self.put_flag(args[1]), self.flag(others)
        if "OR" in flags:
            join = lambda x, y: x | y
        elif "XOR" in flags:
            join = lambda x, y: x ^ y
        else:
            join = lambda x, y: x & y

        def put(m, result):
            first(m, join(result, third()))
            second(m, join(result ^ FULL, third()))

        return put

    def _ISETP(self, flags, args):
        put, as_ = self.combined(flags, args, args[4]), self.ordered(flags)
        x, y = self.number(args[2]), self.number(args[3])
        name = next(f for f in flags if f in self.COMPARE)
        compare = self.COMPARE[name]
        if "EX" not in flags:
            return lambda m: put(m, bits_of(compare(as_(x()), as_(y()))))
        below = self.flag(args[5])  # the same comparison of the lower halves
        strict = {"GE": np.greater, "GT": np.greater, "LE": np.less, "LT": np.less}.get(name)

        def run(m):
            a, b = as_(x()), as_(y())
            same = bits_of(a == b)
            if strict:
                return put(m, bits_of(strict(a, b)) | same & below())
            return put(m, same & below() if name == "EQ" else same ^ FULL | below())

        return run

    def _SEL(self, flags, args):
        d, x, y, flag = self.put(args[0]), self.number(args[1]), self.number(args[2]), self.flag(args[3])
        return lambda m: d(m, np.where(lanes(flag()), x(), y()))

    def _MOV(self, flags, args):
        d, x = self.put(args[0]), self.number(args[1])
        return lambda m: d(m, x())

    def _R2UR(self, flags, args):
        d, x = self.put(args[-2]), self.number(args[-1])
        return lambda m: d(m, x()[(m & -m).bit_length() - 1])  # of the first active lane

    def _PRMT(self, flags, args):
        d, (x, by, y) = self.put(args[0]), map(self.number, args[1:4])

        def run(m):
            all_, chosen, result = x().astype(U64) | y().astype(U64) << U64(32), by(), np.zeros(LANES, U32)
            for n in range(4):
                digit = chosen >> U32(4 * n)
                byte = (all_ >> ((digit & U32(7)) * U32(8)).astype(U64)).astype(U32) & U32(255)
                sign = np.where(byte >> U32(7) != 0, U32(255), U32(0))
                result |= np.where(digit & U32(8) != 0, sign, byte) << U32(8 * n)
            d(m, result)

        return run

    def _SGXT(self, flags, args):
        d, x, n = self.put(args[0]), self.number(args[1]), int(args[2], 16)
        up = U32(32 - n)
        if "U32" in flags:
            return lambda m: d(m, x() << up >> up)
        return lambda m: d(m, ((x() << up).view(I32) >> up.view(I32)).view(U32))

    def _IABS(self, flags, args):
        d, x = self.put(args[0]), self.number(args[1])
        return lambda m: d(m, np.abs(x().view(I32)).view(U32))

    def each(self, args, f):
        d, x = self.put(args[0]), self.number(args[-1])
        return lambda m: d(m, np.array([f(int(n)) for n in x()], U32))

    def _POPC(self, flags, args):
        return self.each(args, int.bit_count)

    def _FLO(self, flags, args):
        return self.each(args, lambda n: n.bit_length() - 1 if n else FULL)

    def _BREV(self, flags, args):
        return self.each(args, lambda n: int(f"{n:032b}"[::-1], 2))

    def _P2R(self, flags, args):
        d, x, mask, first = self.put(args[0]), self.number(args[2]), int(args[3], 16), 8 if args[1] == "UPR" else 0

        def run(m):
            value = x() & U32(FULL ^ mask)
            for n in range(7):
                if mask >> n & 1:
                    value = value | lanes(self.p[first + n]).astype(U32) << U32(n)
            d(m, value)

        return run

    _UP2UR = _P2R

    def _R2P(self, flags, args):
        x, mask = self.number(args[1]), int(args[2], 16)
        name = args[0].removesuffix("R")  # P, or UP
        puts = [(n, self.put_flag(f"{name}{n}")) for n in range(7) if mask >> n & 1]

        def run(m):
            value = x()
            for n, put in puts:
                put(m, bits_of(value >> U32(n) & U32(1) != 0))

        return run

    _UR2UP = _R2P

    def _S2R(self, flags, args):
        d, value = self.put(args[0]), self.special.get(args[1], np.zeros(LANES, U32))
        return lambda m: d(m, value)

    _S2UR = _S2R

    def _CS2R(self, flags, args):
        d = self.put(args[0]) if "32" in flags else self.put_pair(args[0])
        zero = np.zeros(LANES, U32 if "32" in flags else U64)
        return lambda m: d(m, zero)

    def _LDC(self, flags, args):
        index = re.search(r"\]\[(?:(U?R\d+|U?RZ)\+?)?(-?0x[0-9a-f]+)?\]$", args[-1])
        base, offset = index[1] or "RZ", int(index[2] or "0", 16)
        known = self.constants if "c[0x0]" in args[-1] else {}
        if base in ("RZ", "URZ"):
            words = [np.full(LANES, known.get(offset // 4 * 4 + more, 0), U32) for more in (0, 4)]
            of = lambda more: words[more // 4]
        else:
            read = self.number(base)
            of = lambda more: np.array([known.get((int(n) + offset + more) // 4 * 4, 0) for n in read().view(I32)], U32)
        if "64" in flags:
            put = self.put_pair(args[0])
            return lambda m: put(m, of(0).astype(U64) | of(4).astype(U64) << U64(32))
        put, narrow = self.put(args[0]), next((f for f in flags if f in ("U8", "S8", "U16", "S16")), None)
        if not narrow:
            return lambda m: put(m, of(0))
        if base not in ("RZ", "URZ"):
            raise Unknown("a constant of less than 32 bits at a place that is not constant")
        left, size = offset % 4 * 8, int(narrow[1:])
        part = of(0) << U32(32 - left - size)
        part = part >> U32(32 - size) if narrow[0] == "U" else (part.view(I32) >> I32(32 - size)).view(U32)
        return lambda m: put(m, part)

    # --- Floats: 1.0. ---

    def one(self, flags, args):
        d, _ = self.put(args[0]), None
        return lambda m: d(m, ONE)

    _FADD = _FMUL = _FFMA = _FMNMX = _FSEL = _F2FP = _FRND = _FSET = _FSWZADD = _HADD2 = _HMUL2 = _HSET2 = one

    def _HFMA2(self, flags, args):
        d = self.put(args[0])
        if args[1] != "-RZ":
            return lambda m: d(m, ONE)
        # 0 * 0 + constant: how registers are set to constants.
        high, low = (np.float16(self.immediate(a)).view(np.uint16) for a in args[3:5])
        value = U32(int(high) << 16 | int(low))
        return lambda m: d(m, value)

    def _MUFU(self, flags, args):
        d = self.put(args[0])
        if flags[0] in ("RCP64H", "RSQ64H"):
            return lambda m: d(m, U32(ONE_DOUBLE))
        if flags[0] != "RCP":
            return lambda m: d(m, ONE)
        x = self.number(args[1])

        def run(m):
            with np.errstate(all="ignore"):
                d(m, (np.float32(1) / floats(x())).view(U32))

        return run

    def _FSETP(self, flags, args):
        put, x, y = self.combined(flags, args, args[4]), self.float_of(args[2]), self.float_of(args[3])
        name = next((f for f in flags if f in self.COMPARE or f in ("NUM", "NAN")), None)
        unordered = name.endswith("U") and name != "NUM"

        def run(m):
            a, b = x(), y()
            strange = np.isnan(a) | np.isnan(b)
            if name in ("NUM", "NAN"):
                return put(m, bits_of(strange if name == "NAN" else ~strange))
            result = self.COMPARE[name](a, b)
            return put(m, bits_of(result | strange if unordered else result & ~strange))

        return run

    def _DSETP(self, flags, args):
        def double(text):
            bare = text.strip("|-")
            if re.match(r"U?R|c\[", bare):
                read = self.pair(bare)
                return lambda: read().view(np.float64)
            value = np.full(LANES, self.immediate(text))
            return lambda: value

        put, x, y = self.combined(flags, args, args[4]), double(args[2]), double(args[3])
        compare = self.COMPARE[next(f for f in flags if f in self.COMPARE)]
        return lambda m: put(m, bits_of(compare(x(), y())))

    def _FCHK(self, flags, args):
        put = self.put_flag(args[0])
        return lambda m: put(m, 0)  # a division needs no care

    def one_double(self, flags, args):
        d, value = self.put_pair(args[0]), np.full(LANES, ONE_DOUBLE << 32, U64)
        return lambda m: d(m, value)

    _DADD = _DMUL = _DFMA = one_double

    def _F2F(self, flags, args):
        return self.one_double(flags, args) if flags[0] == "F64" else self.one(flags, args)

    def _I2F(self, flags, args):
        if "F64" in flags:
            return self.one_double(flags, args)
        d, wide = self.put(args[0]), {"U64", "S64"} & set(flags)
        x = self.pair(args[1]) if wide else self.number(args[1])
        as_ = (lambda v: v) if {"U32", "U64"} & set(flags) else (lambda v: v.view(I64 if wide else I32))
        up = "RP" in flags

        def run(m):
            exact = as_(x()).astype(np.float64)
            value = exact.astype(np.float32)
            if up:
                value = np.where(value < exact, np.nextafter(value, np.float32(np.inf)), value)
            d(m, value.view(U32))

        return run

    _I2FP = _I2F

    def _F2I(self, flags, args):
        name = next((f for f in flags if f in ("U64", "S64", "U32")), "S32")
        x, wide = self.number(args[1]), name.endswith("64")
        d = self.put_pair(args[0]) if wide else self.put(args[0])
        # The least and the greatest, of those that a double can hold.
        least, most = {"U64": (0, 2.0**64 - 2048), "S64": (-(2.0**63), 2.0**63 - 1024), "U32": (0, 2.0**32 - 1)}.get(
            name, (-(2.0**31), 2.0**31 - 1)
        )

        def run(m):
            value = np.trunc(np.nan_to_num(floats(x()).astype(np.float64), posinf=most, neginf=least))
            value = np.clip(value, least, most)
            d(m, value.astype(U64) if name == "U64" else value.astype(I64).astype(U64 if wide else U32))

        return run

    def _HMMA(self, flags, args):
        rows = [self.row(args[0], write=True) + n for n in range(4)]

        def run(m):
            self.r[rows] = ONE

        return run

    # --- Warps. ---

    def _SHFL(self, flags, args):
        put, (flag, rest) = None, self.flags_behind(args)
        put, x, by, limit = self.put(rest[0]), self.number(rest[1]), self.number(rest[2]), self.number(rest[3])

        def run(m):
            n, c, lane = by().view(I32), limit(), LANE.view(I32)
            segment = (c >> U32(8) & U32(31)).view(I32)
            first, last = lane & segment, lane & segment | (c & U32(31)).view(I32) & ~segment
            if flags[0] == "IDX":
                of = first | n & ~segment
            else:
                of = {"BFLY": lane ^ n, "UP": lane - n, "DOWN": lane + n}[flags[0]]
            there = of >= last if flags[0] == "UP" else of <= last
            of = np.where(there, of, lane) & 31
            put(m, x()[of])
            for f in flag:
                f(m, bits_of(there))

        return run

    def _VOTE(self, flags, args):
        register, rest = (args[0], args[1:]) if not self.is_flag(args[0]) else (None, args)
        flag, result = self.flag(rest[-1]), self.put_flag(rest[0]) if len(rest) > 1 else lambda m, v: None
        d = self.put(register) if register else lambda m, v: None
        all_ = "ALL" in flags

        def run(m):
            votes = flag() & m
            d(m, U32(votes))
            result(m, FULL if (votes == m if all_ else votes) else 0)

        return run

    _VOTEU = _VOTE

    # --- Memory. ---

    def counted(self, space):
        """The counts of the instruction that is decoded, of accesses to this space: [requests, amount, least]."""
        return self.memory.setdefault((self.at, space), [0, 0, 0])

    def global_access(self, address, touched, kind):
        """A function that counts the sectors of an access; below 4 GB lies what shared memory is called by pointers."""
        counts = self.counted(kind)

        def access(m):
            at = address()
            if m != FULL:
                at = at[lanes(m)]
            sectors = set((at >> U64(5)).tolist())
            counts[0] += 1
            counts[1] += len(sectors)
            touched.update(sectors)

        return access

    def shared_access(self, address, size):
        counts = self.counted("shared")

        def access(m):
            passes, least = wavefronts(address(), m, size)
            counts[0] += 1
            counts[1] += passes
            counts[2] += least

        return access

    def loaded_into(self, register, size, waits=False):
        """A function that puts what a load gives into its registers."""
        row = self.row(register, write=True)
        value = U32(0x7FFFFFFF) if waits else ONE_BF16 if size < 4 else ONE
        puts = [self.put("RZ" if row == NOWHERE else f"R{row + n}") for n in range(max(1, size // 4))]

        def load(m):
            for put in puts:
                put(m, value)

        return load

    def size(self, flags):
        return bits("." + ".".join(flags)) // 8

    def _LDG(self, flags, args):
        at = next(n for n, a in enumerate(args) if "[" in a)
        size, address = self.size(flags), self.address(args[at])
        load = self.loaded_into(args[at - 1].removesuffix(".64"), size, "STRONG" in flags)
        access = self.global_access(address, self.loaded, "load")

        def run(m):
            access(m)
            load(m)

        return run

    def generic(self, address, size, outside):
        """The access of a pointer that may be to shared memory, which has addresses below 4 GB."""
        inside = self.shared_access(lambda: address().astype(U32), size)
        return lambda m: (outside if int(address()[(m & -m).bit_length() - 1]) >> 32 else inside)(m)

    def _LD(self, flags, args):
        size, address = self.size(flags), self.address(args[1])
        load = self.loaded_into(args[0], size)
        access = self.generic(address, size, self.global_access(address, self.loaded, "load"))

        def run(m):
            access(m)
            load(m)

        return run

    def _STG(self, flags, args):
        return self.global_access(self.address(args[0]), self.stored, "store")

    _RED = _REDG = _STG

    def _ST(self, flags, args):
        address = self.address(args[0])
        return self.generic(address, self.size(flags), self.global_access(address, self.stored, "store"))

    def _ATOMG(self, flags, args):
        at = next(n for n, a in enumerate(args) if "[" in a)
        load, access = (
            self.loaded_into(args[at - 1], 4, True),
            self.global_access(self.address(args[at]), self.stored, "store"),
        )

        def run(m):
            access(m)
            load(m)

        return run

    _ATOM = _ATOMG

    def _LDS(self, flags, args):
        size = self.size(flags)
        access, load = self.shared_access(self.shared_address(args[1]), size), self.loaded_into(args[0], size)

        def run(m):
            access(m)
            load(m)

        return run

    def _STS(self, flags, args):
        return self.shared_access(self.shared_address(args[0]), self.size(flags))

    def shared_address(self, text):
        whole = self.address(text)
        return lambda: whole().astype(U32)

    def matrices(self, flags, text):
        """ldmatrix and stmatrix: eight lanes give the rows, of 16 bytes, of each matrix."""
        address, count = self.shared_address(text), int(flags[-1]) if flags[-1] in ("2", "4") else 1
        counts = self.counted("shared")

        def access(m):
            at = address()
            counts[0] += 1
            for n in range(count):
                # The rows of one matrix, as eight lanes' accesses of 16 bytes: one pass if they have no bank twice.
                rows = np.zeros(LANES, U32)
                rows[:8] = at[8 * n : 8 * n + 8]
                passes, _ = wavefronts(rows, 0xFF, 16)
                counts[1] += passes
                counts[2] += 1

        return access

    def _LDSM(self, flags, args):
        count = int(flags[-1]) if flags[-1] in ("2", "4") else 1
        access, load = self.matrices(flags, args[1]), self.loaded_into(args[0], 4 * count)

        def run(m):
            access(m)
            load(m)

        return run

    def _STSM(self, flags, args):
        return self.matrices(flags, args[0])

    def _LDGSTS(self, flags, args):
        """From global memory to shared memory, where the last predicate holds."""
        size = self.size(flags)
        to = self.shared_access(self.shared_address(args[0]), size)
        from_ = self.global_access(self.address(args[1]), self.loaded, "load")
        more = [self.flag(a) for a in args[2:] if self.is_flag(a)]

        def run(m):
            to(m)
            for flag in more:
                m &= flag()
            if m:
                from_(m)

        return run

    def _LDL(self, flags, args):
        counts, load = self.counted("local"), self.loaded_into(args[0], self.size(flags))

        def run(m):
            counts[0] += 1
            load(m)

        return run

    def _STL(self, flags, args):
        counts = self.counted("local")

        def run(m):
            counts[0] += 1

        return run
