"""Warps of a kernel, one at a time, run from its machine code (sm_90).

Integers, addresses, predicates and control flow are true. What memory holds is not known: every load gives 1.0, and so
does every operation on floats, except that comparisons, and the conversions that integer division is made of, are true
ones. A load that waits for other blocks (.STRONG) gives a number that ends the wait. The lanes of a warp that part take
turns, the ones that are furthest back first, until they meet where the code says (BSYNC)."""

import numpy as np

from .chain import Clock
from .instructions import Instructions
from .operands import FULL, LANE, LANES, ROWS, U32, Unknown, bits_of, lanes

FOREVER = 1_000_000  # instructions of one warp: no kernel that is walked whole has as many


class Warp(Instructions):
    """A kernel with its constants, {offset: 32-bit word} of bank 0, and its blocks' size. Counts add up over runs."""

    def __init__(self, kernel, constants, block, steps=FOREVER):
        self.kernel, self.constants, self.block, self.steps = kernel, constants, block, steps
        names = ["SR_LANEID", *(f"SR_{what}.{axis}" for what in ("CTAID", "TID") for axis in "XYZ")]
        self.special = {name: np.zeros(LANES, U32) for name in names}
        self.r = np.zeros((ROWS, LANES), U32)
        self.p = [0] * 16  # P0 .. P7 = PT, UP0 .. UP7 = UPT
        self.alive = 0
        self.meeting = {}  # B register: lanes that will meet
        self.waiting = {}  # B register: (index behind the meeting point, lanes that are there)
        self.vote = False
        self.clock = Clock(kernel.code)
        self.decoded = [None] * len(kernel.code)
        # Of each instruction: how often it was issued. Of all: how often with a part of the lanes that are alive.
        self.issued, self.parted = [0] * len(kernel.code), 0
        # Of each that accesses memory: [requests, sectors or passes, least passes].
        self.memory = {}
        self.loaded, self.stored = set(), set()  # sectors

    def start(self, index, warp):
        thread, (x, y, z) = LANE + U32(warp * LANES), (U32(n) for n in self.block)
        values = [LANE, *index, thread % x, thread // x % y, thread // x // y]
        for special, value in zip(self.special.values(), values):
            special[:] = value
        self.alive = bits_of(thread < x * y * z)
        self.r[:] = 0
        self.p[:] = [0] * 16
        self.p[7] = self.p[15] = FULL

    def run(self, index, warp):
        """Runs this warp of this block; gives how many instructions it issued."""
        self.start(index, warp)
        self.clock.start()
        groups = {0: self.alive}  # index of the next instruction: lanes
        code, issued = self.kernel.code, self.issued
        steps = 0
        while groups:
            at = min(groups) if len(groups) > 1 else next(iter(groups))
            mask = groups.pop(at)
            execute, flag, control = self.decoded[at] or self.decode(at)
            issued[at] += 1
            steps += 1
            if mask != self.alive:
                self.parted += 1
            active = mask & flag() if flag else mask
            known = len(self.loaded)
            if control:
                self.clock.issue(at, False)
                for to, who in control(at, mask, active):
                    if who:
                        groups[to] = groups.get(to, 0) | who
                continue
            if active:
                execute(active)
            self.clock.issue(at, len(self.loaded) == known)
            groups[at + 1] = groups.get(at + 1, 0) | mask
            if steps > self.steps:
                raise Unknown(f"{self.kernel.name}: more than {self.steps} instructions, at {code[at].line}")
        if self.waiting:
            raise Unknown(f"{self.kernel.name}: lanes wait for others that have ended")
        return steps

    def decode(self, at):
        ins = self.kernel.code[at]
        flag = self.flag(ins.predicate) if ins.predicate else None
        flags = ins.op.split(".")[1:]
        control = getattr(self, f"go_{ins.name}", None)
        try:
            if control:
                self.decoded[at] = None, flag, control(ins, flags)
            else:
                uniform = ins.name[0] == "U" and hasattr(self, f"_{ins.name[1:]}")
                make = getattr(self, f"_{ins.name[1:] if uniform else ins.name}", None)
                if not make:
                    raise Unknown("scripts/sass/instructions.py does not know it")
                self.at = at
                self.decoded[at] = make(flags, ins.args), flag, None
        except (Unknown, ValueError, IndexError, AttributeError) as e:
            raise Unknown(f"{self.kernel.name}, {ins.line}: '{ins.op} {', '.join(ins.args)}': {e}") from e
        return self.decoded[at]

    # --- Control. Each gives (index, lanes) of what comes next. ---

    def label(self, text):
        return self.kernel.labels[text.strip("`()")]

    def go_BRA(self, ins, flags):
        if "DIV" in flags:  # to code for lanes that have parted, which then has the same warp operations
            return lambda at, mask, active: [(at + 1, mask)]
        to = self.label(ins.args[-1])
        more = [self.flag(a) for a in ins.args[:-1] if self.is_flag(a)]

        def go(at, mask, active):
            for flag in more:
                active &= flag()
            return (to, active), (at + 1, mask & ~active)

        return go

    def go_CALL(self, ins, flags):
        to = self.label(ins.args[-1])
        return lambda at, mask, active: ((to, active), (at + 1, mask & ~active))

    def go_RET(self, ins, flags):
        row = self.row(ins.args[0].split()[0])
        index = {i.address: n for n, i in enumerate(self.kernel.code)}

        def go(at, mask, active):
            places = {}
            for lane in np.flatnonzero(lanes(active)):
                to = index[int(self.r[row][lane])]
                places[to] = places.get(to, 0) | 1 << int(lane)
            return [(at + 1, mask & ~active), *places.items()]

        return go

    def go_BSSY(self, ins, flags):
        name = ins.args[0]

        def go(at, mask, active):
            self.meeting[name] = mask
            return [(at + 1, mask)]

        return go

    def go_BREAK(self, ins, flags):
        name = ins.args[-1]

        def go(at, mask, active):
            self.meeting[name] &= ~active
            return [(at + 1, mask), *self.met()]

        return go

    def go_BSYNC(self, ins, flags):
        name = ins.args[-1]

        def go(at, mask, active):
            _, there = self.waiting.get(name, (0, 0))
            self.waiting[name] = at + 1, there | active
            return [(at + 1, mask & ~active), *self.met()]

        return go

    def met(self):
        """The groups whose last lanes have come."""
        found = [(n, w) for n, w in self.waiting.items() if not self.meeting[n] & self.alive & ~w[1]]
        for name, _ in found:
            del self.waiting[name]
        return [there for _, there in found]

    def go_EXIT(self, ins, flags):
        def go(at, mask, active):
            self.alive &= ~active
            return [(at + 1, mask & ~active), *self.met()]

        return go

    def nothing(self, flags, args):
        return lambda m: None

    _NOP = _WARPSYNC = _ENDCOLLECTIVE = _MEMBAR = _ERRBAR = _CGAERRBAR = _CCTL = _NANOSLEEP = _DEPBAR = nothing
    _LDGDEPBAR = _YIELD = _FENCE = _WARPGROUP = _SYNCS = _ARRIVES = _HGMMA = _ACQBULK = nothing

    def _BAR(self, flags, args):
        if "RED" not in flags:
            return lambda m: None
        flag = self.flag(args[-1])

        def run(m):
            self.vote = bool(flag() & m)

        return run

    def _B2R(self, flags, args):
        put = self.put_flag(args[-1])
        return lambda m: put(m, FULL if self.vote else 0)
