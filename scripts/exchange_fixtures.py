"""Fixtures of `tapezoo import`: layers of other packages with random weights, an input and what they make of it.

    pip install torch==2.15.0 numpy safetensors einops transformers
    pip install --no-deps fla-core==0.6.0 flash-linear-attention==0.6.0 xlstm==2.0.6
    MAMBA_SKIP_CUDA_BUILD=TRUE MAMBA_FORCE_BUILD=TRUE pip install --no-deps --no-build-isolation mamba-ssm==2.3.2.post1
    python scripts/exchange_fixtures.py tests/fixtures/exchange

A file has a module's own state_dict behind `layers.I.`, the input `in.I` and the output `out.I` of each layer, and in
its metadata the mixer, the module as Python writes it, and the settings of the mixer that no shape tells. The modules
compute by their own code in double precision on the CPU. Only kernels that need a GPU are replaced, by the naive
functions that the packages keep beside them, or where there is none by the formula in torch.
"""
import json
import os
import sys
import types
import warnings

sys.path.pop(0)  # a package looks for one called `kernels`, which a script here is called too

import torch

# The packages cast to single precision in places.
torch.float = torch.float32 = torch.float64
torch.Tensor.float = torch.Tensor.double
torch.set_default_dtype(torch.float64)
warnings.filterwarnings("ignore")

import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

OUT = sys.argv[1]
B, T = 2, 7


def save(name, package, mixer, module, layers, width, settings=None, run=None):
    """Run layers one by one; `run` is for a module that gives more than its output."""
    tensors = {}
    for i, layer in enumerate(layers):
        for key, value in layer.state_dict().items():
            tensors[f"layers.{i}.{key}"] = value.detach().clone().contiguous()
        x = torch.randn(B, T, width)
        with torch.no_grad():
            y = (run or (lambda layer, x, i: layer(x)))(layer, x, i)
        tensors |= {f"in.{i}": x, f"out.{i}": (y[0] if isinstance(y, tuple) else y).contiguous()}
    about = {"package": package, "mixer": mixer, "module": module, "settings": settings or {}}
    path = os.path.join(OUT, f"{name}.safetensors")
    save_file(tensors, path, metadata={"about": json.dumps(about)})
    print(f"{path}: {os.path.getsize(path)} bytes, {module}")


def drawn(module, seed):
    """The module in evaluation, every parameter some way off its start: none of them is zero or one."""
    torch.manual_seed(seed)
    module = module.double().eval()
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return module


def made(module, seed, scope):
    """The module that this Python expression makes: it is what `tapezoo export` prints."""
    torch.manual_seed(seed)
    return drawn(eval(module, scope), seed)  # noqa: S307


# torch

class Lstm(nn.LSTM):
    """nn.LSTM with a map back to another width."""

    def __init__(self, width, units):
        super().__init__(width, units, batch_first=True)
        self.post_l0 = nn.Linear(units, width)

    def forward(self, x):
        return self.post_l0(super().forward(x)[0])


def of_torch():
    module = "torch.nn.LSTM(6, 6, batch_first=True)"
    save("torch_lstm", "torch", "lstm", module, [made(module, 1, {"torch": torch})], 6)
    save("torch_lstm_post", "torch", "lstm", "torch.nn.LSTM(6, 8, batch_first=True)", [drawn(Lstm(6, 8), 2)], 6)
    module = "torch.nn.MultiheadAttention(12, 3, batch_first=True)"
    future = torch.ones(T, T).triu(1).bool()
    run = lambda layer, x, i: layer(x, x, x, attn_mask=future, need_weights=False)
    save("torch_gpt", "torch", "gpt", module, [made(module, 3, {"torch": torch})], 12, {"heads": 3}, run=run)


# flash-linear-attention

def without_triton():
    """Replace the functions that need Triton."""
    import fla.layers.attn
    import fla.layers.delta_net
    import fla.layers.gated_deltanet
    import fla.layers.gated_deltaproduct
    import fla.layers.gla
    import fla.layers.kda
    import fla.layers.lightnet
    import fla.layers.path_attn
    import fla.layers.rwkv7
    from fla.modules import FusedRMSNormGated, RMSNorm, RotaryEmbedding, ShortConvolution
    from fla.ops.delta_rule.naive import delta_rule_recurrence
    from fla.ops.gated_delta_product.naive import naive_recurrent_gated_delta_product
    from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule
    from fla.ops.generalized_delta_rule.dplr.naive import dplr_recurrence
    from fla.ops.gla.naive import naive_recurrent_gla
    from fla.ops.kda.gate import naive_kda_gate
    from fla.ops.kda.naive import naive_recurrent_kda
    from fla.ops.path_attn.naive import naive_path_attn
    from fla.ops.rwkv7.fused_addcmul import torch_addcmul_rwkv7
    from fla.ops.rwkv7.fused_k_update import k_update_ref
    from fla.ops.rwkv7.gate_output_correction import gate_output_correction_ref
    from fla.modules.token_shift import token_shift_ref
    layers = fla.layers

    def conv(x, weight, bias=None, activation=None, **_):
        w = weight.reshape(weight.shape[0], 1, -1)
        y = F.conv1d(F.pad(x.transpose(1, 2), (w.shape[-1] - 1, 0)), w, bias, groups=w.shape[0]).transpose(1, 2)
        return (F.silu(y) if activation in ("silu", "swish") else y), None

    def unit(x, eps=1e-6, output_dtype=None):
        return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)

    def rms(x, weight, eps):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight

    gates = {"swish": F.silu, "silu": F.silu, "sigmoid": torch.sigmoid}
    ShortConvolution.forward = lambda self, x, **_: conv(x, self.weight, self.bias, self.activation)
    layers.gated_deltanet.causal_conv1d = conv
    RMSNorm.forward = lambda self, x, **_: rms(x, self.weight, self.eps)
    FusedRMSNormGated.forward = lambda self, x, g, **_: rms(x, self.weight, self.eps) * gates[self.activation](g)

    def delta(q, k, v, beta, use_qk_l2norm_in_kernel, **_):
        assert use_qk_l2norm_in_kernel
        heads = [x.transpose(1, 2) for x in (unit(q), unit(k), v, beta)]
        o, s = delta_rule_recurrence(*heads)
        return o.transpose(1, 2), s

    def gated_delta(q, k, v, g, beta, A_log, dt_bias, allow_neg_eigval, use_gate_in_kernel,
                    use_qk_l2norm_in_kernel, use_beta_sigmoid_in_kernel, **_):
        assert use_gate_in_kernel and use_qk_l2norm_in_kernel and use_beta_sigmoid_in_kernel
        g = -A_log.exp() * F.softplus(g + dt_bias)
        beta = beta.sigmoid() * (2 if allow_neg_eigval else 1)
        return naive_recurrent_gated_delta_rule(unit(q), unit(k), v, beta, g)

    def kda(q, k, v, g, beta, A_log, dt_bias, allow_neg_eigval, use_gate_in_kernel, use_qk_l2norm_in_kernel,
            use_beta_sigmoid_in_kernel, lower_bound=None, **_):
        assert use_gate_in_kernel and use_qk_l2norm_in_kernel and use_beta_sigmoid_in_kernel and lower_bound is None
        beta = beta.sigmoid() * (2 if allow_neg_eigval else 1)
        return naive_recurrent_kda(unit(q), unit(k), v, naive_kda_gate(g, A_log, dt_bias), beta)

    def product(q, k, v, g, beta, use_qk_l2norm_in_kernel, num_householder, **_):
        assert use_qk_l2norm_in_kernel
        scale = q.shape[-1] ** -0.5
        return naive_recurrent_gated_delta_product(unit(q), unit(k), v, g, beta, scale, num_householder=num_householder)

    def lightnet(q, k, v, **_):
        # fla.ops.lightnet: the additive gate, and GLA.
        z = k.logcumsumexp(1)
        before = torch.cat([z[:, :1], z[:, :-1]], 1)
        o, s = naive_recurrent_gla(q, (k - z).exp(), v, before - z)
        return o, (s, z[:, -1:])

    def gated_norm_linear(o, g, weight, bias, o_weight, o_bias, eps=1e-6):
        return F.linear(rms(o, weight, eps) * F.silu(g), o_weight, o_bias)

    def path(q, k, v, w, beta, g, **_):
        g = torch.zeros_like(beta) if g is None else g
        return naive_path_attn(q, k, v, w, beta, g, q.shape[-1] ** -0.5), None

    def rwkv7(r, w, k, v, kk, a, scale, **_):
        heads = [x.transpose(1, 2) for x in (r, k, v, -kk, kk * a, w)]
        q = heads[0] * r.shape[-1] ** 0.5 * scale  # the naive function has the factor 1/√K
        o, s = dplr_recurrence(q, *heads[1:])
        return o.transpose(1, 2), s

    def attention(q, k, v, causal, **_):
        assert causal
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    layers.delta_net.fused_recurrent_delta_rule = delta
    layers.gated_deltanet.fused_recurrent_gated_delta_rule = gated_delta
    layers.kda.fused_recurrent_kda = kda
    layers.gla.ACT2FN = gates
    layers.gla.fused_recurrent_gla = lambda q, k, v, gk, **_: naive_recurrent_gla(q, k, v, gk)
    layers.gated_deltaproduct.chunk_gated_delta_product = product
    layers.lightnet.fused_recurrent_lightnet = lightnet
    layers.lightnet.rms_norm_swish_gate_linear = gated_norm_linear
    layers.path_attn.parallel_path_attn = path
    layers.path_attn.l2_norm = unit
    layers.rwkv7.fused_mul_recurrent_rwkv7 = rwkv7
    layers.rwkv7.token_shift = lambda x, *_, **__: (token_shift_ref(x), None)
    layers.rwkv7.fused_addcmul_rwkv7 = torch_addcmul_rwkv7
    layers.rwkv7.fused_k_rwkv7 = k_update_ref
    layers.rwkv7.gate_output_correction = gate_output_correction_ref
    layers.attn.flash_attn_func = attention
    from fla.modules import rotary
    from fla.modules.rotary import rotary_embedding_ref

    def rotate(self, q, k, **_):
        t = torch.arange(q.shape[1], dtype=torch.float64)[:, None] * self.inv_freq.double()
        return tuple(rotary_embedding_ref(x, t.cos(), t.sin()) for x in (q, k))

    RotaryEmbedding.forward = rotate
    return fla


def of_fla():
    fla = without_triton()
    scope = {"fla": fla}

    def one(name, mixer, module, width, seed, settings=None):
        save(name, "fla", mixer, module, [made(module, seed, scope)], width, settings)

    signed = {"eigenvalues": "-1..1"}
    layer = "fla.layers.DeltaNet(hidden_size=6, expand_k=8/6, expand_v=8/6, num_heads=2, {}, norm_eps=1e-6)"
    one("fla_delta_net", "delta_net", layer.format("conv_size=3, allow_neg_eigval=False"), 6, 11)
    module = layer.format("use_short_conv=False, allow_neg_eigval=True")
    one("fla_delta_net_no_conv", "delta_net", module, 6, 12, signed)
    layer = "fla.layers.GatedDeltaNet(hidden_size=6, head_dim=4, num_heads=2, expand_v=1, {}, norm_eps=1e-6)"
    one("fla_gated_delta_net", "gated_delta_net", layer.format("conv_size=3, allow_neg_eigval=False"), 6, 13)
    one("fla_gated_delta_net_signed", "gated_delta_net",
        layer.format("use_short_conv=False, allow_neg_eigval=True"), 6, 14, signed)
    layer = "fla.layers.GatedLinearAttention(hidden_size=6, expand_k=8/6, expand_v=8/6, num_heads=2, norm_eps=1e-6)"
    one("fla_gla", "gla", layer, 6, 15)
    one("fla_gla_apart", "gla", layer.replace("norm_eps", "fuse_norm=False, norm_eps"), 6, 16)
    layer = "fla.layers.KimiDeltaAttention(hidden_size=6, head_dim=4, num_heads=2, {}, norm_eps=1e-6)"
    one("fla_kda", "kda", layer.format("conv_size=3, allow_neg_eigval=True"), 6, 17, signed)
    layer = ("fla.layers.GatedDeltaProduct(hidden_size=6, head_dim=4, num_heads=2, expand_v=1, num_householder=3, "
             "use_forget_gate=False, use_output_gate=False, {}, norm_eps=1e-6)")
    name = "fla_delta_product"
    # Its recurrent mode is that of gated DeltaNet; while there are gradients it takes the other.
    module = layer.format("conv_size=2, allow_neg_eigval=True")
    run = lambda layer, x, i: with_gradients(layer, x)
    save(name, "fla", "delta_product", module, [made(module, 18, scope)], 6, signed, run=run)
    one("fla_lightnet", "lightnet",
        "fla.layers.LightNetAttention(hidden_size=8, num_heads=2, expand_ratio=4, gate_low_rank_dim=4)", 8, 19)
    module = "fla.layers.PaTHAttention(hidden_size=8, num_heads=2)"
    one("fla_path", "path", module, 8, 20)
    module = "fla.layers.Attention(hidden_size=12, num_heads=3)"
    one("fla_gpt", "gpt", module, 12, 21, {"heads": 3})
    one("fla_gpt_bias", "gpt", "fla.layers.Attention(hidden_size=12, num_heads=3, qkv_bias=True)", 12, 22, {"heads": 3})

    module = ("fla.layers.RWKV7Attention(hidden_size=8, head_dim=4, decay_low_rank_dim=4, gate_low_rank_dim=4, "
              "a_low_rank_dim=4, v_low_rank_dim=4, norm_eps=64e-5/4, layer_idx={}, num_hidden_layers=2)")
    layers, first = [made(module.format(i), 23 + i, scope) for i in range(2)], []

    def run(layer, x, i):
        y, _, _, v = layer(x, v_first=first[0] if first else None)
        first.append(v)
        return y

    save("fla_rwkv7", "fla", "rwkv7", module.format("I"), layers, 8, run=run)


def with_gradients(layer, x):
    with torch.enable_grad():
        return layer(x)[0].detach()


# xlstm

def of_xlstm():
    from xlstm.blocks.mlstm.layer import mLSTMLayer, mLSTMLayerConfig
    from xlstm.blocks.slstm.cell import sLSTMCell_cuda
    from xlstm.blocks.slstm.layer import sLSTMLayer, sLSTMLayerConfig
    scope = dict(mLSTMLayer=mLSTMLayer, mLSTMLayerConfig=mLSTMLayerConfig,
                 sLSTMLayer=sLSTMLayer, sLSTMLayerConfig=sLSTMLayerConfig)
    module = ("mLSTMLayer(mLSTMLayerConfig(embedding_dim=6, num_heads=2, conv1d_kernel_size=3, proj_factor=12/6, "
              "round_proj_up_to_multiple_of=1, context_length=256))")
    save("xlstm_mlstm", "xlstm", "mlstm", module, [made(module, 31, scope)], 6)
    module = "sLSTMLayer(sLSTMLayerConfig(embedding_dim=6, num_heads=2, conv1d_kernel_size={}, backend=\"vanilla\"))"
    save("xlstm_slstm", "xlstm", "slstm", module.format(3), [made(module.format(3), 32, scope)], 6)
    plain = made(module.format(0), 33, scope)
    save("xlstm_slstm_no_conv", "xlstm", "slstm", module.format(0), [plain], 6)

    # The CUDA cell keeps the same numbers in another order; it turns them by its own functions.
    torch.manual_seed(34)
    layer = made(module.format(3), 34, scope)
    cell, state = layer.slstm_cell, layer.state_dict()
    kernel, bias = cell._recurrent_kernel_int2ext(cell._recurrent_kernel_), cell._bias_int2ext(cell._bias_)
    state["slstm_cell._recurrent_kernel_"] = sLSTMCell_cuda._recurrent_kernel_ext2int(cell, kernel)
    state["slstm_cell._bias_"] = sLSTMCell_cuda._bias_ext2int(cell, bias)
    layer.state_dict = lambda: state
    save("xlstm_slstm_cuda", "xlstm", "slstm", module.format(3).replace("vanilla", "cuda"), [layer], 6)


# mamba-ssm

def of_mamba():
    # The extension that is built with CUDA; its reference in Python takes its place.
    sys.modules["selective_scan_cuda"] = types.ModuleType("selective_scan_cuda")
    import mamba_ssm
    from mamba_ssm.modules import mamba2, mamba_simple
    from mamba_ssm.modules.ssd_minimal import ssd_minimal_discrete
    from mamba_ssm.ops.selective_scan_interface import selective_scan_ref
    mamba_simple.selective_scan_fn = selective_scan_ref

    def combined(zxbcdt, conv_weight, conv_bias, dt_bias, A, D, chunk_size, activation, rmsnorm_weight, rmsnorm_eps,
                 outproj_weight, outproj_bias, headdim, ngroups, norm_before_gate, **_):
        """mamba_split_conv1d_scan_combined, around the package's ssd_minimal."""
        assert activation in ("silu", "swish") and ngroups == 1 and not norm_before_gate
        h, t = A.shape[0], zxbcdt.shape[1]
        inner, n = h * headdim, (conv_weight.shape[0] - h * headdim) // 2
        z, xbc, dt = zxbcdt.split([inner, inner + 2 * n, h], -1)
        conv = F.conv1d(xbc.transpose(1, 2), conv_weight[:, None], conv_bias, padding=conv_weight.shape[1] - 1,
                        groups=conv_weight.shape[0])
        x, b, c = F.silu(conv[..., :t].transpose(1, 2)).split([inner, n, n], -1)
        dt = F.softplus(dt + dt_bias)
        x, shared = x.unflatten(-1, (h, headdim)), lambda y: y[:, :, None].expand(-1, -1, h, -1)
        y, _ = ssd_minimal_discrete(x * dt[..., None], A * dt, shared(b), shared(c), 1)
        y = (y + D[:, None] * x).flatten(2) * F.silu(z)
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + rmsnorm_eps) * rmsnorm_weight
        return F.linear(y, outproj_weight, outproj_bias)

    mamba2.mamba_split_conv1d_scan_combined = combined
    scope = {"mamba_ssm": mamba_ssm}
    module = "mamba_ssm.Mamba(d_model=6, d_state=3, d_conv=4, expand=2, dt_rank=2)"
    save("mamba_mamba", "mamba", "mamba", module, [made(module, 41, scope)], 6)
    module = "mamba_ssm.Mamba2(d_model=6, d_state=3, d_conv=4, expand=2, headdim=4)"
    save("mamba_mamba2", "mamba", "mamba2", module, [made(module, 42, scope)], 6)


os.makedirs(OUT, exist_ok=True)
for part in (of_torch, of_fla, of_xlstm, of_mamba):
    part()
