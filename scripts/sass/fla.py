"""The Triton kernels of flash-linear-attention, which our matrix memories are compared with, compiled without a GPU and
walked as ours are: B = 8, T = 4096, H = 16, K = V = 64, bf16, chunks of 64, with 4 warps a block, 2 stages and 32
columns a block where states go along a head. (Its autotuner may choose otherwise on a GPU.)"""

import importlib
import importlib.metadata
import os
import re
import subprocess
import sys
import types
import warnings

from . import compile, listing, stub_torch
from .cost import walk
from .launches import FIRST, Launch, Pass

B, T, H, K, V, C = 8, 4096, 16, 64, 64, 64
CHUNKS, HEADS, WARPS, STAGES = T // C, B * H, 4, 2
# A block a chunk of a head; a block a chunk, with the chunks second; along a head, with 1 or 2 blocks for its columns.
EACH, SECOND, ALONG, HALVES = (CHUNKS, HEADS, 1), (1, CHUNKS, HEADS), (1, 1, HEADS), (2, HEADS, 1)
BF16, F32 = "*bf16", "*fp32"
# Tensors of a number a step, or a state a head; all others have K a step, as have the states and a chunk's square.
SMALL = ("g", "dg", "beta", "db", "dbeta", "h0", "ht", "dh0", "dht")
CONSTANTS = {
    "H": H, "HV": H, "HQ": H, "K": K, "V": V, "B": B, "BT": C, "BK": 64, "BV": 64, "BS": 64, "NG": 1,
    "IS_VARLEN": False, "USE_G": False, "USE_GK": False, "USE_GV": False, "USE_G_GAMMA": False, "STATE_V_FIRST": False,
    "USE_INITIAL_STATE": True, "STORE_FINAL_STATE": True, "SAVE_NEW_VALUE": True, "USE_FINAL_STATE_GRADIENT": True,
    "STORE_INITIAL_STATE_GRADIENT": True, "USE_A": False, "USE_TMA": False, "DOT_PRECISION": "ieee",
}  # fmt: skip


def tensors(bf16, f32=""):
    return {name: BF16 for name in bf16.split()} | {name: F32 for name in f32.split()}


def linear_attention():
    h = "common.chunk_h", "chunk_fwd_kernel_h", ALONG, tensors("k v h", "h0 ht"), {}
    o = "common.chunk_o", "chunk_fwd_kernel_o", SECOND, tensors("q k v h o"), {}
    dh = "common.chunk_h", "chunk_bwd_kernel_dh", ALONG, tensors("q do dh", "dht dh0"), {}
    dqk = "common.chunk_o", "chunk_bwd_kernel_dqkwg", SECOND, tensors("q k v h do dh dq dk"), {"USE_DW": False}
    dv = "common.chunk_o", "chunk_bwd_kernel_dv", SECOND, tensors("q k do dv dh"), {}
    return {"linear_attention forward": [h, o], "linear_attention backward": [h, dh, dqk, dv]}


def delta_rule(gated):
    g, dg = ("g", "g dg") if gated else ("", "")
    module = f"{'gated_' if gated else ''}delta_rule.wy_fast"
    kkt = "common.chunk_scaled_dot_kkt", "chunk_scaled_dot_kkt_fwd_kernel", EACH, tensors("k", f"beta A {g}"), {}
    solve = "utils.solve_tril", "merge_16x16_to_64x64_inverse_kernel", EACH, tensors("Ai", "A"), {}
    wu = module, "recompute_w_u_fwd_kernel", EACH, tensors("k v beta w u A", g), {}
    states = "common.chunk_delta_h", "chunk_gated_delta_rule_fwd_kernel_h_blockdim64", HALVES
    h = *states, tensors("k v w v_new h", f"h0 ht {g}"), {"BV": 32}
    o = "common.chunk_o", "chunk_fwd_kernel_o", SECOND, tensors("q k v h o", g), {}
    local = "common.chunk_o", "chunk_bwd_kernel_dv_local", EACH, tensors("q k do dv", g), {}
    states = "common.chunk_delta_h", "chunk_gated_delta_rule_bwd_kernel_dhu_blockdim64", HALVES
    dhu = *states, tensors("q k w do dh dv dv2", f"dht dh0 {g}"), {"BV": 32}
    dqkw = (
        "common.chunk_o",
        "chunk_bwd_kernel_dqkwg",
        SECOND,
        tensors("q k v h do dh dq dk dw dv", dg),
        {"USE_DW": True},
    )
    through = tensors("k v beta A dw du dk dv", f"db {dg}") if gated else tensors("k v beta A dw du dk dv dbeta")
    wy = module, "prepare_wy_repr_bwd_kernel", EACH, through, {}
    name = "gated_delta_rule" if gated else "delta_rule"
    passes = {f"{name} forward": [kkt, solve, wu, h, o], f"{name} backward": [wu, h, local, dhu, dqkw, wy]}
    return {p: [(*k[:4], k[4] | {"USE_G": gated}) for k in kernels] for p, kernels in passes.items()}


def kimi():
    """Kimi Delta Attention, the delta rule with a gate a channel, as it is without bounded gates; the sums of gates too, as
    ours have those in their kernels."""
    cumsum = "utils.cumsum", "chunk_local_cumsum_vector_kernel", EACH
    sums = *cumsum, tensors("s", "o"), {"REVERSE": False, "HAS_SCALE": True}
    token = "kda.chunk_intra_token_parallel", "chunk_kda_fwd_kernel_intra_token_parallel", (B * T, H // 4, 1)
    diagonal = *token, tensors("q k beta Aqk", "g Akk"), {}
    solve = "kda.chunk_intra", "chunk_kda_fwd_kernel_inter_solve_fused", EACH
    rest = *solve, tensors("q k beta Aqk Akk", "g Akkd"), {"BK": 32}
    wu = "kda.wy_fast", "recompute_w_u_fwd_kda_kernel", EACH
    wu_forward = *wu, tensors("k kg v beta w u A", "gk"), {"STORE_QG": False}
    wu_backward = *wu, tensors("q qg k kg v beta w u A", "gk"), {"STORE_QG": True}
    states = "common.chunk_delta_h", "chunk_gated_delta_rule_fwd_kernel_h_blockdim64", HALVES
    h = *states, tensors("k v w v_new h", "h0 ht gk"), {"BV": 32}
    o = "gla.chunk", "chunk_gla_fwd_kernel_o", EACH, tensors("q v h o A", "g"), {}
    local = "kda.chunk_bwd", "chunk_kda_bwd_kernel_dAv", EACH, tensors("q k v A do dv", "dA"), {}
    states = "common.chunk_delta_h", "chunk_gated_delta_rule_bwd_kernel_dhu_blockdim64", HALVES
    dhu = *states, tensors("q k w do dh dv dv2", "dht dh0 gk"), {"BV": 32}
    wy = "kda.chunk_bwd", "chunk_kda_bwd_kernel_wy_dqkg_fused", EACH
    through = *wy, tensors("q k v v_new beta A h do dh dv dv2", "g dq dk dg db dA"), {}
    intra = "kda.chunk_intra", "chunk_kda_bwd_kernel_intra", (2 * 4 * CHUNKS, HEADS, 1)
    inside = *intra, tensors("q k beta", "g dAqk dAkk dq dq2 dk dk2 dg dg2 db"), {"BK": 32}
    back = *cumsum, tensors("", "s o"), {"REVERSE": True, "HAS_SCALE": False}
    shared = {"USE_GK": True, "S": K, "BS": 64, "BC": 16, "NC": 4, "BH": 4, "STORE_KG": True, "GATE_SHIFT": 2.885}
    shared |= {"USE_SAFE_GATE": False, "SAFE_GATE": False, "USE_GATHER": False}
    name = "erase_write, a gate a channel"
    passes = {
        f"{name} forward": [sums, diagonal, rest, wu_forward, h, o],
        f"{name} backward": [wu_backward, h, local, dhu, through, inside, back],
    }
    return {p: [(*k[:4], shared | k[4]) for k in kernels] for p, kernels in passes.items()}


def prepare():
    """Imports flash-linear-attention's modules of kernels, without its packages, which import all the rest."""
    warnings.simplefilter("ignore")
    os.environ.setdefault("TRITON_CACHE_DIR", str(compile.CACHE / "triton"))
    if "torch" in sys.modules:
        return
    stub_torch.install()
    packages = "ops modules ops.common ops.delta_rule ops.gated_delta_rule ops.kda ops.gla ops.simple_gla modules.norm"
    for name in packages.split():
        package = types.ModuleType(f"fla.{name}")
        package.__path__ = [str(compile.SITE / "fla" / name.replace(".", "/"))]
        sys.modules[package.__name__] = package


def compiled(module, name, types_, constants):
    """(Kernel, what it takes, the parameters' names)"""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.runtime.jit import JITFunction

    function = getattr(importlib.import_module(f"fla.ops.{module}"), name)
    while not isinstance(function, JITFunction):
        function = function.fn
    signature, constexprs, attributes, names = {}, {}, {}, []
    for i, arg in enumerate(function.arg_names):
        kind = types_.get(arg) or {"T": "i32", "scale": "fp32"}.get(arg)
        signature[arg] = kind or "constexpr"
        if not kind:
            constexprs[arg] = constants.get(arg)
            continue
        names.append(arg)
        if arg in types_:
            attributes[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(function, signature, constexprs, attributes)

    def make():
        options = {"num_warps": WARPS, "num_stages": STAGES}
        done = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        path = compile.CACHE / "fla.cubin"
        path.write_bytes(done.asm["cubin"])
        used = subprocess.run([compile.TOOLS / "cuobjdump", "-res-usage", path], capture_output=True, text=True)
        registers, stack = (int(re.search(rf"{what}:(\d+)", used.stdout + used.stderr)[1]) for what in ("REG", "STACK"))
        path.unlink()
        about = {"registers": registers, "shared": done.metadata.shared, "spilled": stack}
        return compile.disassemble(done.asm["cubin"]), about

    versions = [importlib.metadata.version(p) for p in ("fla-core", "triton")]
    done = compile.kept([module, name, repr(signature), repr(sorted(constexprs.items(), key=str)), *versions], make)
    (kernel,) = listing.parse(done.listing).values()
    return kernel, done.uses, names


def launch(name, grid, types_, names):
    """A launch of it: the parameters in order, and two of Triton's own that are null."""
    args, buffers = [], []
    for arg in names:
        if arg in types_:
            args.append((8, FIRST * (len(buffers) + 1)))
            numbers = B * T * H if arg in SMALL else B * T * H * K
            buffers.append(numbers * (2 if types_[arg] == BF16 else 4))
        else:
            args.append((4, T if arg == "T" else 0x3E000000))
    args += [(8, 0)] * 2
    return Launch("fla", "bf16", name, grid, (32 * WARPS, 1, 1), 0, False, args, buffers)


def passes():
    """[(Pass, costs)]"""
    prepare()
    found, known = [], {}
    for name, kernels in (linear_attention() | delta_rule(False) | delta_rule(True) | kimi()).items():
        op, _, way = name.rpartition(" ")
        p, costs = Pass(op, way, "bf16", {"T": T}), []
        for kernel in kernels:
            module, function, grid, types_, constants = kernel
            key = repr(kernel)
            if key not in known:
                code, use, names = compiled(module, function, types_, CONSTANTS | constants)
                known[key] = walk(launch(function, grid, types_, names), code, use)
            costs.append(known[key])
        found.append((p, costs))
    return found
