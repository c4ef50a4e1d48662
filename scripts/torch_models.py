"""The models of src/models/ in PyTorch, with the parameters' names and shapes there, each in the ways of writing it that
were found fast: nn.LSTM's kernel, one autograd function around a scan, chunks, scaled_dot_product_attention.

A mixer is a class with `shapes(c)`, its parameters, and `ways`, its formulations: functions of its parameters p, the
input x [B, T, D] and the sizes c. All of a mixer's ways compute the same.
"""
import math

import torch
import torch.nn.functional as F
from torch import nn

import torch_memories
from torch_parts import causal_conv, gated_scan, heads, lstm, merge, selective_scan


class Lstm:
    @staticmethod
    def shapes(c):
        d, n = c["width"], c["heads"] * c["head_dim"]
        return {"w_ih": (4 * n, d), "w_hh": (4 * n, n), "b_ih": (4 * n,), "b_hh": (4 * n,), "w_post": (d, n), "b_post": (d,)}

    @staticmethod
    def nn_lstm(p, x, c):
        """The kernel that nn.LSTM calls."""
        zero = x.new_zeros(1, x.shape[0], c["heads"] * c["head_dim"])
        weights = [p["w_ih"], p["w_hh"], p["b_ih"], p["b_hh"]]
        y, _, _ = lstm(x, (zero, zero), weights, True, 1, 0.0, True, False, True)
        return F.linear(y, p["w_post"], p["b_post"])

    @staticmethod
    def loop(p, x, c):
        h = cell = x.new_zeros(x.shape[0], c["heads"] * c["head_dim"])
        hs = []
        for z in F.linear(x, p["w_ih"], p["b_ih"] + p["b_hh"]).unbind(1):
            i, f, g, o = torch.addmm(z, h, p["w_hh"].t()).chunk(4, -1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(cell)
            hs.append(h)
        return F.linear(torch.stack(hs, 1), p["w_post"], p["b_post"])

    ways = {"nn.LSTM": nn_lstm, "unbind loop": loop}


class QuasiLstm:
    @staticmethod
    def shapes(c):
        d, n = c["width"], c["heads"] * c["head_dim"]
        return {"w": (4 * n, d), "b": (4 * n,), "w_post": (d, n), "b_post": (d,)}

    @staticmethod
    def gates(p, x):
        f, i, z, o = F.linear(x, p["w"], p["b"]).chunk(4, -1)
        return torch.sigmoid(f + 1.0), torch.sigmoid(i) * torch.tanh(z), torch.sigmoid(o)

    @staticmethod
    def scan(p, x, c):
        f, u, o = QuasiLstm.gates(p, x)
        return F.linear(o * torch.tanh(gated_scan(f, u)), p["w_post"], p["b_post"])

    @staticmethod
    def loop(p, x, c):
        f, u, o = QuasiLstm.gates(p, x)
        us, all_ = u.unbind(1), []
        for t, f in enumerate(f.unbind(1)):
            all_.append(torch.addcmul(us[t], f, all_[-1]) if t else us[t])
        return F.linear(o * torch.tanh(torch.stack(all_, 1)), p["w_post"], p["b_post"])

    ways = {"scan in one function": scan, "unbind loop": loop}


class Lru:
    @staticmethod
    def shapes(c):
        d, n = c["width"], c["state"]
        ring = {"nu_log": (n,), "theta_log": (n,), "gamma_log": (n,)}
        maps = {"B_re": (n, d), "B_im": (n, d), "C_re": (d, n), "C_im": (d, n), "D": (d,)}
        return ring | maps | {"w1": (d, d), "b1": (d,), "w2": (d, d), "b2": (d,)}

    @staticmethod
    def around(p, u, core):
        lam = torch.polar(torch.exp(-torch.exp(p["nu_log"])), torch.exp(p["theta_log"]))
        gamma = torch.exp(p["gamma_log"])
        b = F.linear(u, torch.cat([p["B_re"] * gamma[:, None], p["B_im"] * gamma[:, None]]))
        h = core(lam, torch.complex(*b.chunk(2, -1)))
        y = F.linear(torch.cat([h.real, h.imag], -1), torch.cat([p["C_re"], -p["C_im"]], 1)) + p["D"] * u
        g = F.gelu(y, approximate="tanh")
        return F.glu(F.linear(g, torch.cat([p["w1"], p["w2"]]), torch.cat([p["b1"], p["b2"]])))

    @staticmethod
    def scan(p, u, c):
        return Lru.around(p, u, gated_scan)

    @staticmethod
    def powers(lam, n):
        """λ^0 … λ^(n-1), [n, N]"""
        return torch.cat([torch.ones_like(lam)[None], lam.expand(n - 1, -1)]).cumprod(0)

    @staticmethod
    def chunks(p, u, c):
        """The scan in chunks of 32 steps: within one a product with the matrix of λ^(t-s), between them the carry."""

        def core(lam, x):
            b, t, n = x.shape
            size = min(32, t)
            power = Lru.powers(lam, size + 1)
            lag = torch.arange(size)[:, None] - torch.arange(size)
            kernel = (power[lag.clamp(min=0)] * (lag >= 0)[..., None]).permute(2, 0, 1)  # [N, C, C]
            x = x.view(b, t // size, size, n)
            h = torch.einsum("nts,bksn->bktn", kernel, x)
            carry, out = None, []
            for local in h.unbind(1):
                local = local if carry is None else local + power[1:] * carry[:, None]
                carry = local[:, -1]
                out.append(local)
            return torch.cat(out, 1)

        return Lru.around(p, u, core)

    ways = {"scan in one function": scan, "chunks of 32": chunks}


class Attention:
    @staticmethod
    def shapes(c):
        d, n = c["width"], c["heads"] * c["head_dim"]
        return {"w_qkv": (3 * n, d), "b_qkv": (3 * n,), "w_o": (d, n), "b_o": (d,)}

    @staticmethod
    def around(p, x, c, core):
        q, k, v = F.linear(x, p["w_qkv"], p["b_qkv"]).chunk(3, -1)
        o = core(*[heads(y, c["heads"]) for y in (q, k, v)])
        return F.linear(merge(o), p["w_o"], p["b_o"])


class LinearTransformer(Attention):
    @staticmethod
    def masked(p, x, c):
        def core(q, k, v):
            a = (F.elu(q) + 1) @ (F.elu(k) + 1).transpose(-1, -2)
            a = a.tril()
            return (a @ v) / (a.sum(-1, keepdim=True) + 1e-6)

        return Attention.around(p, x, c, core)

    @staticmethod
    def chunks(p, x, c, size=32):
        def core(q, k, v):
            b, h, t, n = k.shape
            q, k, v = [y.reshape(b, h, t // size, size, n) for y in (F.elu(q) + 1, F.elu(k) + 1, v)]
            s = (k.transpose(-1, -2) @ v).cumsum(2)
            z = k.sum(3).cumsum(2)
            s, z = F.pad(s, (0, 0, 0, 0, 1, 0))[:, :, :-1], F.pad(z, (0, 0, 1, 0))[:, :, :-1]  # before each chunk
            a = (q @ k.transpose(-1, -2)).tril()
            den = a.sum(-1, keepdim=True) + q @ z[..., None] + 1e-6
            return ((a @ v + q @ s) / den).view(b, h, t, n)

        return Attention.around(p, x, c, core)

    ways = {"masked product": masked, "chunks of 32": chunks}


class Gpt(Attention):
    @staticmethod
    def sdpa(p, x, c):
        return Attention.around(p, x, c, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True))

    @staticmethod
    def softmax(p, x, c):
        def core(q, k, v):
            t = q.shape[2]
            a = (q * q.shape[3] ** -0.5) @ k.transpose(-1, -2)
            mask = torch.ones(t, t, dtype=torch.bool).triu(1)
            return a.masked_fill(mask, -math.inf).softmax(-1) @ v

        return Attention.around(p, x, c, core)

    ways = {"scaled_dot_product_attention": sdpa, "softmax": softmax}


class DeltaNet:
    @staticmethod
    def shapes(c):
        d, n = c["width"], c["heads"] * c["head_dim"]
        conv = {f"conv_{x}": (n, c["conv"]) for x in "qkv"} if c["conv"] else {}
        return {f"w_{x}": (n, d) for x in "qkv"} | conv | {"w_beta": (c["heads"], d), "norm": (c["head_dim"],), "w_o": (d, n)}

    @staticmethod
    def around(p, x, c, core):
        q, k, v = F.linear(x, torch.cat([p["w_q"], p["w_k"], p["w_v"]])).chunk(3, -1)
        if c["conv"]:
            q, k, v = [causal_conv(y, p[f"conv_{n}"]) for n, y in zip("qkv", (q, k, v))]
        q, k, v = [heads(F.silu(y), c["heads"]) for y in (q, k, v)]
        q, k = [y * torch.rsqrt(y.square().sum(-1, keepdim=True) + 1e-6) for y in (q, k)]
        beta = torch.sigmoid(F.linear(x, p["w_beta"])).transpose(1, 2)[..., None]  # [B, H, T, 1]
        o = core(q * c["head_dim"] ** -0.5, k, v, beta)
        return F.linear(merge(F.rms_norm(o, (c["head_dim"],), p["norm"], 1e-6)), p["w_o"])

    @staticmethod
    def chunked(p, x, c, size=32):
        def core(q, k, v, beta):
            b, h, t, n = k.shape
            m = min(size, t)
            q, k, v, beta = [y.reshape(b, h, t // m, m, -1) for y in (q, k, v, beta)]
            bk, kt = beta * k, k.transpose(-1, -2)
            a = (bk @ kt).tril(-1) + torch.eye(m, dtype=k.dtype)
            solve = lambda y: torch.linalg.solve_triangular(a, y, upper=False, unitriangular=True)
            local = (q @ kt).tril()
            if t == m:
                return (local @ solve(beta * v)).view(b, h, t, n)
            u, w = solve(torch.cat([beta * v, bk], -1)).chunk(2, -1)
            s, out = torch.zeros(b, h, n, n, dtype=k.dtype), []
            for q, kt, u, w, local in zip(*[y.unbind(2) for y in (q, kt, u, w, local)]):
                u = u - w @ s
                out.append(q @ s + local @ u)
                s = s + kt @ u
            return torch.cat(out, 2)

        return DeltaNet.around(p, x, c, core)

    ways = {"chunks of 32": chunked}


class Mamba:
    @staticmethod
    def shapes(c):
        d, n, r = c["width"], c["state"], c["dt_rank"]
        e = c["expand"] * d
        conv = {"conv1d_weight": (e, c["conv"]), "conv1d_bias": (e,)} if c["conv"] else {}
        maps = {"in_proj_weight": (2 * e, d), "x_proj_weight": (r + 2 * n, e), "dt_proj_weight": (e, r)}
        return maps | {"out_proj_weight": (d, e)} | conv | {"dt_proj_bias": (e,), "A_log": (e, n), "D": (e,)}

    @staticmethod
    def around(p, u, c, core):
        n, r = c["state"], c["dt_rank"]
        x, z = F.linear(u, p["in_proj_weight"]).chunk(2, -1)
        if c["conv"]:
            x = causal_conv(x, p["conv1d_weight"], p["conv1d_bias"])
        x = F.silu(x)
        delta, b, out = F.linear(x, p["x_proj_weight"]).split([r, n, n], -1)
        dt = F.softplus(F.linear(delta, p["dt_proj_weight"], p["dt_proj_bias"]))
        y = core(dt, x, -torch.exp(p["A_log"]), b, out) + p["D"] * x
        return F.linear(y * F.silu(z), p["out_proj_weight"])

    @staticmethod
    def states(p, u, c, scan):
        """All states at once, from all gates at once."""

        def core(dt, x, a, b, out):
            h = scan(torch.exp(dt[..., None] * a), (dt * x)[..., None] * b[:, :, None])  # [B, T, E, N]
            return (h @ out[..., None])[..., 0]

        return Mamba.around(p, u, c, core)

    @staticmethod
    def unbound(a, x):
        all_, xs = [], x.unbind(1)
        for t, a in enumerate(a.unbind(1)):
            all_.append(torch.addcmul(xs[t], a, all_[-1]) if t else xs[t])
        return torch.stack(all_, 1)

    ways = {
        "selective scan in one function": lambda p, u, c: Mamba.around(p, u, c, selective_scan),
        "scan in one function": lambda p, u, c: Mamba.states(p, u, c, gated_scan),
        "unbind loop": lambda p, u, c: Mamba.states(p, u, c, Mamba.unbound),
    }


MIXERS = torch_memories.MIXERS | {
    "lstm": Lstm, "quasi_lstm": QuasiLstm, "lru": Lru, "linear_transformer": LinearTransformer, "gpt": Gpt,
    "delta_net": DeltaNet, "mamba": Mamba,
}


def shapes(c):
    """Every parameter of the decoder of src/models/decoder.rs around this mixer, in the order there."""
    d, m = c["width"], c["mlp"]
    norm = lambda at: {f"{at}norm.w": (d,), f"{at}norm.b": (d,)}
    all_ = {"embedding": (2, d)} | ({"positions": (c["T"], d)} if c["positions"] == "learned" else {})
    for l in range(c["layers"]):
        at = f"blocks.{l}."
        all_ |= norm(at) | {f"{at}mixer.{n}": s for n, s in MIXERS[c["mixer"]].shapes(c | {"layer": l}).items()}
        if m:
            all_ |= norm(f"{at}mlp.")
            all_ |= {f"{at}mlp.w1": (m, d), f"{at}mlp.b1": (m,), f"{at}mlp.w2": (d, m), f"{at}mlp.b2": (d,)}
    return all_ | norm("") | {"head": (2, d)}


class Decoder(nn.Module):
    """The decoder; `weights` are tensors under the names of `shapes`."""

    def __init__(self, c, way, weights):
        super().__init__()
        self.c, self.mix = c, MIXERS[c["mixer"]].ways[way]
        self.all = nn.ParameterList([nn.Parameter(w.clone()) for w in weights.values()])
        self.names = list(weights)
        p = dict(zip(self.names, self.all))
        part = lambda at: {n[len(at):]: w for n, w in p.items() if n.startswith(at)}
        self.p, self.mixers = p, [part(f"blocks.{l}.mixer.") for l in range(c["layers"])]

    def norm(self, at, x):
        return F.layer_norm(x, x.shape[-1:], self.p[f"{at}norm.w"], self.p[f"{at}norm.b"])

    def forward(self, tokens):
        c, p = dict(self.c), self.p
        x = F.embedding(tokens, p["embedding"]) * math.sqrt(c["width"])
        if "positions" in p:
            x = x + p["positions"][: tokens.shape[1]]
        for l, mixer in enumerate(self.mixers):
            at = f"blocks.{l}."
            x = x + self.mix(mixer, self.norm(at, x), c)
            if c["mlp"]:
                h = F.linear(self.norm(f"{at}mlp.", x), p[f"{at}mlp.w1"], p[f"{at}mlp.b1"])
                x = x + F.linear(F.gelu(h, approximate="tanh"), p[f"{at}mlp.w2"], p[f"{at}mlp.b2"])
        return F.linear(self.norm("", x), p["head"])
