"""sLSTM and mLSTM in PyTorch, as in torch_models.py."""
import math

import torch
import torch.nn.functional as F

from torch_parts import causal_conv, heads, merge


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
