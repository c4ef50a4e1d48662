"""The models of src/models/ in PyTorch, with the parameters' names and shapes there, each in the ways of writing it that
were found fast: nn.LSTM's kernel, one autograd function around a scan, chunks, scaled_dot_product_attention.

A mixer is a class with `shapes(c)`, its parameters, and `ways`, its formulations: functions of its parameters p, the
input x [B, T, D] and the sizes c. All of a mixer's ways compute the same.
"""
import math

import torch
import torch.nn.functional as F
from torch import nn


def heads(x, h):
    """[B, T, H K] to [B, H, T, K]"""
    b, t, hk = x.shape
    return x.view(b, t, h, hk // h).transpose(1, 2)


def merge(x):
    """[B, H, T, K] to [B, T, H K]"""
    b, h, t, k = x.shape
    return x.transpose(1, 2).reshape(b, t, h * k)


def causal_conv(x, w, bias=None):
    """A filter w [E, W] a channel of x [B, T, E]."""
    e, width = w.shape
    return F.conv1d(F.pad(x.transpose(1, 2), (width - 1, 0)), w[:, None], bias, groups=e).transpose(1, 2)


class Scan(torch.autograd.Function):
    """h_t = a_t h_{t-1} + u_t along axis 1, h_0 = 0. a is one gate for every step [B, T, ..], or one for all steps, and
    real or complex. Nothing is recorded inside."""

    @staticmethod
    def forward(ctx, a, u):
        h = torch.empty_like(u)
        steps, hs, us = u.shape[1], h.unbind(1), u.unbind(1)
        gates = a.unbind(1) if a.dim() == u.dim() else [a] * steps
        hs[0].copy_(us[0])
        for t in range(1, steps):
            torch.addcmul(us[t], gates[t], hs[t - 1], out=hs[t])
        ctx.save_for_backward(a, h)
        return h

    @staticmethod
    def backward(ctx, dh):
        a, h = ctx.saved_tensors
        g = torch.empty_like(h)
        steps, gs, ds = h.shape[1], g.unbind(1), dh.unbind(1)
        conj = a.conj().resolve_conj()
        gates = conj.unbind(1) if a.dim() == h.dim() else [conj] * steps
        gs[-1].copy_(ds[-1])
        for t in range(steps - 2, -1, -1):
            torch.addcmul(ds[t], gates[min(t + 1, steps - 1)], gs[t + 1], out=gs[t])
        before = h[:, :-1].conj()
        if a.dim() == h.dim():
            da = torch.zeros_like(a)
            torch.mul(g[:, 1:], before, out=da[:, 1:])
        else:
            da = (g[:, 1:] * before).sum((0, 1))
        return da, g


class Lstm:
    @staticmethod
    def shapes(c):
        d, n = c["width"], c["heads"] * c["head_dim"]
        return {"w_ih": (4 * n, d), "w_hh": (4 * n, n), "b_ih": (4 * n,), "b_hh": (4 * n,), "w_post": (d, n), "b_post": (d,)}

    @staticmethod
    def nn_lstm(p, x, c):
        """What nn.LSTM calls."""
        zero = x.new_zeros(1, x.shape[0], c["heads"] * c["head_dim"])
        weights = [p["w_ih"], p["w_hh"], p["b_ih"], p["b_hh"]]
        y, _, _ = torch.lstm(x, (zero, zero), weights, True, 1, 0.0, True, False, True)
        return F.linear(y, p["w_post"], p["b_post"])

    ways = {"nn.LSTM": nn_lstm}


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
        return F.linear(o * torch.tanh(Scan.apply(f, u)), p["w_post"], p["b_post"])

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
        return Lru.around(p, u, Scan.apply)

    @staticmethod
    def powers(lam, n):
        """λ^0 … λ^(n-1), [n, N]"""
        return torch.cat([torch.ones_like(lam)[None], lam.expand(n - 1, -1)]).cumprod(0)

    @staticmethod
    def chunks(p, u, c):
        """Within 32 steps a product with the matrix of λ^(t-s), between them the carry."""

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
    def chunks(p, x, c):
        def core(q, k, v):
            b, h, t, n = k.shape
            size = min(32, t)
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
    def chunked(p, x, c, size):
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

    @staticmethod
    def loop(p, x, c):
        def core(q, k, v, beta):
            b, h, t, n = k.shape
            s, out = torch.zeros(b, h, n, n, dtype=k.dtype), []
            for q, k, v, beta in zip(*[y.unbind(2) for y in (q, k, v, beta)]):
                error = beta * (v - (k[..., None, :] @ s)[..., 0, :])
                s = s + k[..., None] * error[..., None, :]
                out.append((q[..., None, :] @ s)[..., 0, :])
            return torch.stack(out, 2)

        return DeltaNet.around(p, x, c, core)

    ways = {
        "chunks of 32": lambda p, x, c: DeltaNet.chunked(p, x, c, 32),
        "chunks of 64": lambda p, x, c: DeltaNet.chunked(p, x, c, 64),
        "unbind loop": loop,
    }


class Mamba:
    @staticmethod
    def shapes(c):
        d, n, r = c["width"], c["state"], c["dt_rank"]
        e = c["expand"] * d
        conv = {"conv1d_weight": (e, c["conv"]), "conv1d_bias": (e,)} if c["conv"] else {}
        maps = {"in_proj_weight": (2 * e, d), "x_proj_weight": (r + 2 * n, e), "dt_proj_weight": (e, r)}
        return maps | {"out_proj_weight": (d, e)} | conv | {"dt_proj_bias": (e,), "A_log": (e, n), "D": (e,)}

    @staticmethod
    def around(p, u, c, states):
        n, r = c["state"], c["dt_rank"]
        x, z = F.linear(u, p["in_proj_weight"]).chunk(2, -1)
        if c["conv"]:
            x = causal_conv(x, p["conv1d_weight"], p["conv1d_bias"])
        x = F.silu(x)
        delta, b, out = F.linear(x, p["x_proj_weight"]).split([r, n, n], -1)
        dt = F.softplus(F.linear(delta, p["dt_proj_weight"], p["dt_proj_bias"]))
        a_bar = torch.exp(dt[..., None] * -torch.exp(p["A_log"]))  # [B, T, E, N]
        h = states(a_bar, (dt * x)[..., None] * b[:, :, None])
        y = (h @ out[..., None])[..., 0] + p["D"] * x
        return F.linear(y * F.silu(z), p["out_proj_weight"])

    @staticmethod
    def scan(p, u, c):
        return Mamba.around(p, u, c, Scan.apply)

    @staticmethod
    def loop(p, u, c):
        def states(a, x):
            all_, xs = [], x.unbind(1)
            for t, a in enumerate(a.unbind(1)):
                all_.append(torch.addcmul(xs[t], a, all_[-1]) if t else xs[t])
            return torch.stack(all_, 1)

        return Mamba.around(p, u, c, states)

    ways = {"scan in one function": scan, "unbind loop": loop}


def head_norm(h, w):
    """h [B, H, T, K]"""
    h = F.layer_norm(h, h.shape[-1:], eps=1e-5)
    return merge(h) * w


def block_linear(x, w):
    """x [.., I] by W [G, O / G, I / G] to [.., G, O / G]"""
    g, o, i = w.shape
    return torch.einsum("...gi,goi->...go", x.reshape(*x.shape[:-1], g, i), w)


def block_dense(x, w):
    """The same as one product with a matrix that is mostly zeros: faster for small blocks."""
    return F.linear(x, torch.block_diag(*w)).unflatten(-1, w.shape[:2])


class Slstm:
    @staticmethod
    def shapes(c):
        d, h, k = c["width"], c["heads"], c["head_dim"]
        n, g = h * k, h if d % h == 0 else 1
        conv = {"conv": (d, c["conv"]), "conv_bias": (d,)} if c["conv"] else {}
        post = {"w_o": (d, n)} if d != n else {}
        gates = {"w_if": (g, 2 * n // g, d // g), "w_zo": (g, 2 * n // g, d // g)}
        return conv | gates | {"r": (4, h, k, k), "bias": (4, n), "norm": (n,)} | post

    @staticmethod
    def loop(p, x, c, blocks=block_dense):
        b, t, _ = x.shape
        h, k = c["heads"], c["head_dim"]
        short = F.silu(causal_conv(x, p["conv"], p["conv_bias"])) if c["conv"] else x
        pair = lambda w, x: blocks(x, w).view(b, t, w.shape[0], 2, -1).transpose(2, 3).reshape(b, t, 2, h, k)
        z = torch.cat([pair(p["w_if"], short), pair(p["w_zo"], x)], 2) + p["bias"].view(4, h, k)
        z = z.permute(1, 3, 0, 2, 4).reshape(t, h, b, 4 * k)  # gates side by side, heads first
        r = p["r"].permute(1, 2, 0, 3).reshape(h, k, 4 * k)
        hs = []
        for step, z in enumerate(z.unbind(0)):
            i, f, z, o = (torch.baddbmm(z, hs[-1], r) if step else z).split(k, -1)
            if step:
                l = F.logsigmoid(f) + m
                m = torch.maximum(l, i)
                i, f = torch.exp(i - m), torch.exp(l - m)
                cell, n = f * cell + i * torch.tanh(z), f * n + i
            else:
                m, cell, n = i, torch.tanh(z), torch.ones_like(z)
            hs.append(torch.sigmoid(o) * cell / n)
        y = head_norm(torch.stack(hs, 2).transpose(0, 1), p["norm"])
        return F.linear(y, p["w_o"]) if "w_o" in p else y

    ways = {"unbind loop, dense blocks": loop, "unbind loop": lambda p, x, c: Slstm.loop(p, x, c, block_linear)}


class Mlstm:
    @staticmethod
    def shapes(c):
        d, h = c["width"], c["heads"]
        n = h * c["head_dim"]
        g = n // 4 if n % 4 == 0 else h
        conv = {"conv": (n, c["conv"]), "conv_bias": (n,)} if c["conv"] else {}
        maps = {"w_up": (2 * n, d)} | conv | {f"w_{x}": (g, n // g, n // g) for x in "qkv"}
        return maps | {"w_if": (2 * h, 3 * n), "b_if": (2 * h,), "norm": (n,), "skip": (n,), "w_down": (d, n)}

    @staticmethod
    def masked(p, u, c, blocks=block_dense):
        h = c["heads"]
        x, z = F.linear(u, p["w_up"]).chunk(2, -1)
        short = F.silu(causal_conv(x, p["conv"], p["conv_bias"]) if c["conv"] else x)
        q, k, v = [blocks(y, p[f"w_{n}"]).flatten(-2) for n, y in zip("qkv", (short, short, x))]
        i, f = F.linear(torch.cat([q, k, v], -1), p["w_if"], p["b_if"]).transpose(1, 2).chunk(2, 1)  # [B, H, T]
        q, k, v = [heads(y, h) for y in (q, k, v)]
        sums = F.logsigmoid(f).cumsum(-1)
        mask = torch.ones(u.shape[1], u.shape[1], dtype=torch.bool).triu(1)
        exponents = (sums[..., None] + (i - sums)[..., None, :]).masked_fill(mask, -math.inf)
        m = exponents.amax(-1, keepdim=True)
        a = (q * c["head_dim"] ** -0.5) @ k.transpose(-1, -2) * torch.exp(exponents - m)
        den = torch.maximum(a.sum(-1, keepdim=True).abs(), torch.exp(-m)) + 1e-6
        y = head_norm(a @ v / den, p["norm"]) + p["skip"] * short
        return F.linear(y * F.silu(z), p["w_down"])

    ways = {"masked product, dense blocks": masked, "masked product": lambda p, u, c: Mlstm.masked(p, u, c, block_linear)}


MIXERS = {
    "lstm": Lstm, "quasi_lstm": QuasiLstm, "lru": Lru, "linear_transformer": LinearTransformer, "gpt": Gpt,
    "delta_net": DeltaNet, "mamba": Mamba, "slstm": Slstm, "mlstm": Mlstm,
}


def shapes(c):
    """Every parameter of the decoder of src/models/decoder.rs around this mixer, in the order there."""
    d, m = c["width"], c["mlp"]
    norm = lambda at: {f"{at}norm.w": (d,), f"{at}norm.b": (d,)}
    all_ = {"embedding": (2, d)} | ({"positions": (c["T"], d)} if c["positions"] == "learned" else {})
    for l in range(c["layers"]):
        at = f"blocks.{l}."
        all_ |= norm(at) | {f"{at}mixer.{n}": s for n, s in MIXERS[c["mixer"]].shapes(c).items()}
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
        c, p = self.c, self.p
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
