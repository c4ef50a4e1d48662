"""The seven models of the published experiment (swiss-ai/modern_rnns) in PyTorch, written as published: a loop over
time in Python that indexes x[:, :, t], one matrix a gate, products of states where a diagonal is read. Their defects
are those of src/models/published/, whose parameters' names and shapes these have, and whose loss and gradients
are compared with theirs before anything is timed.
"""
import math

import torch
import torch.nn.functional as F
from torch import nn

from torch_parts import heads, merge


class Lstm(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.h, self.d = c["heads"], c["head_dim"]
        inner = self.h * self.d
        for gate in "FIZO":
            setattr(self, f"linear_{gate}x", nn.Linear(c["width"], inner))
            setattr(self, f"linear_{gate}h", nn.Linear(inner, inner))
        self.linear_post_head = nn.Linear(inner, c["width"])

    def forward(self, x):
        b, steps, _ = x.shape
        fx, ix, zx, ox = [heads(getattr(self, f"linear_{gate}x")(x), self.h) for gate in "FIZO"]
        h = cell = x.new_zeros(b, self.h, self.d)
        recur = lambda layer, h: layer(h.reshape(b, -1)).view(b, self.h, self.d)
        outputs = []
        for t in range(steps):
            f = torch.sigmoid(fx[:, :, t] + recur(self.linear_Fh, h))
            i = torch.sigmoid(ix[:, :, t] + recur(self.linear_Ih, h))
            z = torch.tanh(zx[:, :, t] + recur(self.linear_Zh, h))
            o = torch.sigmoid(ox[:, :, t] + recur(self.linear_Oh, h))
            cell = f * cell + i * z
            h = o * torch.tanh(cell)
            outputs.append(h)
        return self.linear_post_head(merge(torch.stack(outputs, 2)))


class QuasiLstm(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.h, inner = c["heads"], c["heads"] * c["head_dim"]
        self.block = n = min(8, c["T"])
        for gate in "FIZO":
            setattr(self, f"linear_{gate}x", nn.Linear(c["width"], inner))
        self.linear_post_head = nn.Linear(inner, c["width"])
        k, l = torch.arange(n)[:, None], torch.arange(n + 1)
        self.register_buffer("own", (l <= k).float(), persistent=False)
        self.register_buffer("seen", (l < k + 2).float(), persistent=False)

    def forward(self, x):
        b, steps, _ = x.shape
        n, own, seen = self.block, self.own.to(x.dtype), self.seen.to(x.dtype)
        f = torch.sigmoid(heads(self.linear_Fx(x), self.h) + 1.0)
        i = torch.sigmoid(heads(self.linear_Ix(x), self.h))
        z = torch.tanh(heads(self.linear_Zx(x), self.h))
        o = torch.sigmoid(heads(self.linear_Ox(x), self.h))
        u = i * z
        cell = x.new_zeros(b, self.h, f.shape[-1], 1)
        outputs = []
        for start in range(0, steps, n):
            fb = f[:, :, start : start + n].transpose(2, 3)  # [B, H, d, L]
            ub = u[:, :, start : start + n].transpose(2, 3)
            ones = torch.ones_like(fb[..., :1])
            gates = torch.cat([fb, ones], -1)[..., None, :] * own + (1 - own)  # [B, H, d, L, L + 1]
            logs = torch.log(gates + 1e-8)
            sums = torch.flip(torch.cumsum(torch.flip(logs, [-1]), -1), [-1])
            products = (torch.exp(sums) - 1e-8) * seen
            cells = torch.einsum("bhdkl,bhdl->bhdk", products, torch.cat([cell, ub], -1))
            outputs.append(o[:, :, start : start + n] * torch.tanh(cells.transpose(2, 3)))
            cell = cells[..., -1:]
        return self.linear_post_head(merge(torch.cat(outputs, 2)))


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.h, inner = c["heads"], c["heads"] * c["head_dim"]
        self.linear_Q, self.linear_K, self.linear_V = [nn.Linear(c["width"], inner) for _ in range(3)]
        self.linear_O = nn.Linear(inner, c["width"])

    def qkv(self, x):
        return [heads(layer(x), self.h) for layer in (self.linear_Q, self.linear_K, self.linear_V)]


class LinearTransformer(Attention):
    def forward(self, x):
        q, k, v = self.qkv(x)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        kv = torch.cumsum(torch.einsum("bhid,bhie->bhide", k, v), 2)  # every state
        z = torch.cumsum(k, 2)
        numerator = torch.einsum("bhid,bhidd->bhid", q, kv)
        return self.linear_O(merge(numerator / (torch.einsum("bhid,bhid->bhi", q, z)[..., None] + 1e-6)))


class Gpt(Attention):
    def __init__(self, c):
        super().__init__(c)
        self.register_buffer("mask", torch.ones(c["T"], c["T"]).tril().bool(), persistent=False)

    def forward(self, x):
        q, k, v = self.qkv(x)
        t = x.shape[1]
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(~self.mask[:t, :t], float("-inf"))
        return self.linear_O(merge(torch.einsum("bhij,bhjd->bhid", torch.softmax(scores, -1), v)))


class DeltaNet(Attention):
    def __init__(self, c):
        super().__init__(c)
        self.linear_beta = nn.Linear(c["width"], c["heads"])

    def forward(self, x):
        q, k, v = self.qkv(x)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        beta = torch.sigmoid(self.linear_beta(x)).transpose(1, 2)  # [B, H, T]
        b, h, steps, d = v.shape
        w = x.new_zeros(b, h, d, d)
        outputs = []
        for t in range(steps):
            kt = k[:, :, t]
            old = torch.einsum("bhdd,bhd->bhd", w, kt)
            w = w + beta[:, :, t, None, None] * torch.einsum("bhd,bhe->bhde", v[:, :, t] - old, kt)
            outputs.append(torch.einsum("bhdd,bhd->bhd", w, q[:, :, t]))
        return self.linear_O(merge(torch.stack(outputs, 2)))


class Mamba(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.n, self.r, self.w = c["state"], c["dt_rank"], c["conv"]
        d, e = c["width"], c["expand"] * c["width"]
        self.in_proj = nn.Linear(d, 2 * e, bias=False)
        self.conv1d = nn.Conv1d(e, e, self.w, groups=e, padding=self.w - 1)
        self.x_proj = nn.Linear(e, self.r + 2 * self.n, bias=False)
        self.dt_proj = nn.Linear(self.r, e)
        self.A_log, self.D = nn.Parameter(torch.zeros(e, self.n)), nn.Parameter(torch.ones(e))
        self.out_proj = nn.Linear(e, d, bias=False)

    def forward(self, u):
        steps = u.shape[1]
        x, z = self.in_proj(u).transpose(1, 2).chunk(2, 1)  # [B, E, T]
        x = F.silu(self.conv1d(F.pad(x, (self.w - 1, 0)))[..., -steps:])
        dt, b, c = self.x_proj(x.transpose(1, 2)).split([self.r, self.n, self.n], -1)
        dt = F.softplus(self.dt_proj(dt)).transpose(1, 2)
        b, c = b.transpose(1, 2), c.transpose(1, 2)  # [B, N, T]
        # selective_scan_ref of mamba_ssm
        a_bar = torch.exp(torch.einsum("bdl,dn->bdln", dt, -torch.exp(self.A_log)))
        bx = torch.einsum("bdl,bnl,bdl->bdln", dt, b, x)
        h = x.new_zeros(x.shape[0], x.shape[1], self.n)
        ys = []
        for t in range(steps):
            h = a_bar[:, :, t] * h + bx[:, :, t]
            ys.append(torch.einsum("bdn,bn->bd", h, c[:, :, t]))
        y = torch.stack(ys, 2) + x * self.D[:, None]
        return self.out_proj((y * F.silu(z)).transpose(1, 2))


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c_fc, self.c_proj = nn.Linear(c["width"], c["mlp"]), nn.Linear(c["mlp"], c["width"])

    def forward(self, x):
        x = self.c_fc(x)
        x = 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))
        return self.c_proj(x)


class Block(nn.Module):
    def __init__(self, c, name, mixer):
        super().__init__()
        self.name = name
        self.ln1 = nn.LayerNorm(c["width"])
        self.add_module(name, mixer(c))
        if name != "mamba":
            self.ln2, self.mlp = nn.LayerNorm(c["width"]), Mlp(c)

    def forward(self, x):
        x = x + getattr(self, self.name)(self.ln1(x))
        return x if self.name == "mamba" else x + self.mlp(self.ln2(x))


class Decoder(nn.Module):
    def __init__(self, c, name, mixer):
        super().__init__()
        self.width = c["width"]
        self.input_embedding = nn.Embedding(2, c["width"])
        if name == "attn":
            self.position_embedding = nn.Embedding(c["T"], c["width"])
        self.layers = nn.ModuleList([Block(c, name, mixer) for _ in range(c["layers"])])
        self.ln_f = nn.LayerNorm(c["width"])
        self.linear = nn.Linear(c["width"], 2, bias=False)

    def forward(self, tokens):
        x = self.input_embedding(tokens) * math.sqrt(self.width)
        if hasattr(self, "position_embedding"):
            x = x + self.position_embedding(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.linear(self.ln_f(x))


class LruCore(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, n = c["width"], c["state"]
        of = lambda *shape: nn.Parameter(torch.zeros(*shape))
        self.nu_log, self.theta_log, self.D = of(n), of(n), of(d)
        self.B_re, self.B_im, self.C_re, self.C_im = of(n, d), of(n, d), of(d, n), of(d, n)

    def forward(self, u):
        lam = torch.exp(torch.complex(-torch.exp(self.nu_log), torch.exp(self.theta_log)))
        gamma = torch.exp(0.5 * torch.log(1 - torch.exp(-2 * torch.exp(self.nu_log)) + 1e-5))
        b = torch.complex(self.B_re, self.B_im) * gamma[:, None]
        c = torch.complex(self.C_re, self.C_im)
        x = u.to(b.dtype) @ b.T  # [B, T, N]
        h = torch.zeros_like(x[:, 0])
        outputs = []
        for t in range(u.shape[1]):
            h = lam * h + x[:, t]
            outputs.append(h)
        return (torch.stack(outputs, 1) @ c.T).real + self.D * u


class LruLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        d = c["width"]
        self.lru, self.normalization = LruCore(c), nn.BatchNorm1d(d)
        self.out1, self.out2 = nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x):
        u = self.normalization(x.transpose(1, 2)).transpose(1, 2)
        g = F.gelu(self.lru(u))
        return x + self.out1(g) * torch.sigmoid(self.out2(g))


class LruEncoder(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_projection = nn.Linear(1, c["width"])
        self.layers = nn.ModuleList([LruLayer(c) for _ in range(c["layers"])])

    def forward(self, x):
        x = self.input_projection(x)
        for layer in self.layers:
            x = layer(x)
        return x


class Lru(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.encoder, self.decoder = LruEncoder(c), nn.Linear(c["width"], 2)

    def forward(self, tokens):
        x = self.encoder(tokens[..., None].to(self.decoder.weight.dtype))
        return F.log_softmax(self.decoder(x), -1)


BLOCKS = {
    "lstm": ("rnn", Lstm), "quasi_lstm": ("rnn", QuasiLstm), "linear_transformer": ("attn", LinearTransformer),
    "gpt": ("attn", Gpt), "delta_net": ("attn", DeltaNet), "mamba": ("mamba", Mamba),
}


def model(c):
    """The published model at these sizes."""
    return Lru(c) if c["mixer"] == "lru" else Decoder(c, *BLOCKS[c["mixer"]])
