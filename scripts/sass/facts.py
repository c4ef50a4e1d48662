"""Whether the walker computes integers as C does: small kernels that store at an address which is their result. And whether
a warp's time is what its instructions' latencies add up to."""

from itertools import product

from . import chain, compile, listing
from .cost import ARCH
from .warp import Warp

M64 = (1 << 64) - 1


def i32(x):
    return (x + (1 << 31)) % (1 << 32) - (1 << 31)


def i64(x):
    return (x + (1 << 63)) % (1 << 64) - (1 << 63)


def quotient(x, y):
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def odd_sum(lane, n):
    """The sum of a loop that lanes leave at different times, with a branch in it."""
    total = 0
    for i in range(lane % 7 + n):
        if (i + lane) % 3 == 0:
            continue
        total += i * lane
        if total > 90:
            break
    return total


# CUDA, with a and b of 64 bits, c and d of 32, and the lane l; and the same here.
FACTS = [
    ("a + b", lambda a, b, c, d, l: a + b),
    ("b - a", lambda a, b, c, d, l: b - a),
    ("a * b + l", lambda a, b, c, d, l: a * b + l),
    ("b - (a << 6)", lambda a, b, c, d, l: b - (a << 6)),
    ("b - a * 64 < 64 ? b - a * 64 : 64", lambda a, b, c, d, l: min(i64(b - i64(a * 64)), 64)),
    ("d ? a / d : a", lambda a, b, c, d, l: quotient(a, d) if d else a),
    ("b ? a % b : a", lambda a, b, c, d, l: a - b * quotient(a, b) if b else a),
    ("d ? (i64)((u64)a / (u64)d) : a", lambda a, b, c, d, l: (a & M64) // (d & M64) if d else a),
    ("d && c != -c ? c / d : 0", lambda a, b, c, d, l: quotient(c, d) if d and c else 0),
    ("d ? (u32)c % (u32)d : 0", lambda a, b, c, d, l: (c % 2**32) % (d % 2**32) if d else 0),
    ("(l + c) / 7 + (l - c) % 5",
     lambda a, b, c, d, l: quotient(i32(l + c), 7) + (i32(l - c) - 5 * quotient(i32(l - c), 5))),
    ("a << (c & 63)", lambda a, b, c, d, l: a << (c & 63)),
    ("a >> (l + 20)", lambda a, b, c, d, l: a >> (l + 20)),
    ("(i64)((u64)a >> (l + 20))", lambda a, b, c, d, l: (a & M64) >> (l + 20)),
    ("(c >> 3) + (i64)((u32)d >> 5)", lambda a, b, c, d, l: (c >> 3) + (d % 2**32 >> 5)),
    ("min(a, b) - max(a, (i64)c)", lambda a, b, c, d, l: min(a, b) - max(a, c)),
    ("(a < b) + 2 * (a <= c) + 4 * (a == b) + 8 * ((u64)a > (u64)b)",
     lambda a, b, c, d, l: (a < b) + 2 * (a <= c) + 4 * (a == b) + 8 * ((a & M64) > (b & M64))),
    ("(i64)__umulhi(c, d) + abs(d) + __popc(c) + __clz(d)",
     lambda a, b, c, d, l: ((c % 2**32) * (d % 2**32) >> 32) + abs(d) + (c % 2**32).bit_count() + 32
         - (d % 2**32).bit_length()),
    ("(a & b) ^ (a | ~b) ^ (a & ~(i64)c)", lambda a, b, c, d, l: (a & b) ^ (a | ~b) ^ (a & ~c)),
    ("(i64)(short)c + (unsigned char)d + (signed char)(c >> 8)",
     lambda a, b, c, d, l: ((c + 2**15) % 2**16 - 2**15) + d % 256 + ((c >> 8) + 128) % 256 - 128),
    ("__shfl_xor_sync(~0u, l * 3, 5) + 100 * __shfl_up_sync(~0u, l, 2) + 10000 * __shfl_sync(~0u, l, 9, 16)",
     lambda a, b, c, d, l: (l ^ 5) * 3 + 100 * (l - 2 if l >= 2 else l) + 10000 * (9 + l // 16 * 16)),
    ("(i64)__ballot_sync(~0u, l % 3 == 1) + __any_sync(~0u, l == 40)",
     lambda a, b, c, d, l: sum(1 << n for n in range(1, 32, 3))),
    ("odd_sum(l, c & 3)", lambda a, b, c, d, l: odd_sum(l, c & 3)),
]  # fmt: skip
TEXT = """
typedef long long i64; typedef unsigned long long u64; typedef unsigned u32;
__device__ i64 min(i64 x, i64 y) { return x < y ? x : y; }
__device__ i64 max(i64 x, i64 y) { return x > y ? x : y; }
__device__ __noinline__ i64 odd_sum(int lane, int n) {
    i64 total = 0;
    for (int i = 0; i < lane % 7 + n; i++) {
        if ((i + lane) % 3 == 0) continue;
        total += i * lane;
        if (total > 90) break;
    }
    return total;
}
"""
KERNEL = """
extern "C" __global__ void fact_%d(char* low, char* high, i64 a, i64 b, int c, int d) {
    const int l = threadIdx.x;
    const i64 x = %s;
    low[32 * (u64)(u32)x] = 1;
    high[32 * ((u64)x >> 32)] = 1;
}
"""
LONG = (0, 1, -1, 129, -(2**31), 123456789012345, -987654321987654)
INTS = ((0, 1), (3, -2), (-7, 1000003), (2**31 - 1, 65537), (-(2**31) + 1, -641), (70000, 0))
LOW, HIGH = 1 << 50, 1 << 51
# A warp's time at the last of these instructions, as rows of the listing: the latencies that stand before it, in chain.py.
CHAINS = [
    ("FADD R1, R0, R0; FADD R2, R1, R1; FADD R3, R2, R2", 1 + 2 * chain.ARITHMETIC),
    ("FADD R1, R0, R0; FADD R2, R0, R0; FADD R3, R0, R0", 3),
    ("LDG.E.128 R4, desc[UR4][R2.64]; FADD R0, R0, R0; FADD R8, R7, R0", 1 + chain.SECOND_CACHE),
    ("LDS.64 R4, [R2]; SHFL.BFLY PT, R6, R5, 0x1, 0x1f; @P0 EXIT; FADD R6, R6, R6", 1 + chain.SHARED + chain.SHUFFLE),
    ("ISETP.GE.AND P0, PT, R0, R1, PT; @!P0 FADD R2, R3, R3", 1 + chain.ARITHMETIC),
    ("HMMA.16816.F32.BF16 R4, R8, R12, R4; HMMA.16816.F32.BF16 R16, R8, R12, R16; FADD R0, R7, R7", 1 + chain.MMA["16816"]),
    ("IMAD.WIDE R2, R0, R1, R4; LDG.E R6, desc[UR4][R2.64]; STG.E desc[UR4][R2.64], R6", 1 + chain.ARITHMETIC + chain.SECOND_CACHE),
    ("LDGSTS.E.128 [R0], desc[UR4][R2.64]; LDGDEPBAR; LDGSTS.E.128 [R1], desc[UR4][R2.64]; LDGDEPBAR; DEPBAR.LE SB0, 0x1", 1 + chain.SECOND_CACHE),
    ("LDGSTS.E.128 [R0], desc[UR4][R2.64]; LDGDEPBAR; LDGSTS.E.128 [R1], desc[UR4][R2.64]; LDGDEPBAR; DEPBAR.LE SB0, 0x0", 3 + chain.SECOND_CACHE),
]  # fmt: skip


def chains():
    """The errors in a warp's time, as lines."""
    wrong = []
    for text, expected in CHAINS:
        rows = "\n".join(f"        /*{16 * n:04x}*/ {ins};" for n, ins in enumerate(text.split("; ")))
        clock = chain.Clock(listing.parse(f".text.fact:\n{rows}")["fact"].code)
        for at in range(len(clock.code)):
            clock.issue(at, False)
        if clock.now != expected:
            wrong.append(f"{text}: the last one issues at {clock.now}, not {expected}")
    return wrong


def check():
    """All errors, as lines."""
    text = TEXT + "".join(KERNEL % (n, cuda) for n, (cuda, _) in enumerate(FACTS))
    done = compile.kept(
        [text, ARCH, "facts"], lambda: (compile.disassemble(compile.build("facts.cu", text, ARCH)[0]), {})
    )
    kernels, wrong = listing.parse(done.listing), []
    for n, (cuda, python) in enumerate(FACTS):
        for (a, b), (c, d) in product(zip(LONG, LONG[3:] + LONG[:3]), INTS):
            words = {0: 32, 4: 1, 8: 1, 0xC: 1, 0x10: 1, 0x14: 1, 0x28: 0xFFFDC0}
            for at, value in zip((0x210, 0x218, 0x220, 0x228, 0x230), (LOW, HIGH, a, b, c % 2**32 | d % 2**32 << 32)):
                words |= {at: value & 0xFFFFFFFF, at + 4: value >> 32 & 0xFFFFFFFF}
            warp = Warp(kernels[f"fact_{n}"], words, (32, 1, 1))
            warp.run((0, 0, 0), 0)
            results = [python(a, b, c, d, lane) & M64 for lane in range(32)]
            expected = {LOW // 32 + (x & 0xFFFFFFFF) for x in results} | {HIGH // 32 + (x >> 32) for x in results}
            if warp.stored != expected:
                wrong.append(f"{cuda} for a = {a}, b = {b}, c = {c}, d = {d}: the walker stores elsewhere than C would")
                break
    return wrong + chains()
