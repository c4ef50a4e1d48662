"""Matrix memories with gates in PyTorch: GLA, KDA, RWKV-7 and Mamba-2 of src/models/, each as the plain recurrence over time
(as flash-linear-attention's naive code has it) and in chunks of 32, which is the fastest. Within a chunk the log gates are
summed from its start. The factors exp(±G) overflow where gates stay closed for long; ours do not.

As in torch_models.py, a mixer has `shapes(c)` and `ways`.
"""
import torch
import torch.nn.functional as F

from torch_parts import causal_conv, heads, merge

CHUNK = 32


def in_chunks(*all_):
    """[B, H, T, .] to [B, H, T/C, C, .]"""
    t = all_[0].shape[2]
    c = min(CHUNK, t)
    return [x.reshape(*x.shape[:2], t // c, c, x.shape[-1]) for x in all_]


def each_step(*all_):
    """The slices along axis 2: steps, or chunks."""
    return zip(*[x.unbind(2) for x in all_])


def recurrence(q, k, v, g):
    s, out = torch.zeros(*v.shape[:2], k.shape[-1], v.shape[-1]), []
    for q, k, v, a in each_step(q, k, v, g.exp()):
        s = a[..., None] * s + k[..., None] * v[..., None, :]
        out.append((q[..., None] * s).sum(-2))
    return torch.stack(out, 2)


class Gla:
    @staticmethod
    def shapes(c):
        d, n, k = c["width"], c["heads"] * c["head_dim"], c["head_dim"]
        gate = {"w_g1": (16, d), "w_g2": (n, 16), "b_g": (n,)}
        return {"w_qkv": (3 * n, d)} | gate | {"w_r": (n, d), "norm": (k,), "w_o": (d, n)}

    @staticmethod
    def around(p, x, c, core):
        h, k = c["heads"], c["head_dim"]
        q, key, v = F.linear(x, p["w_qkv"]).chunk(3, -1)
        g = F.logsigmoid(F.linear(F.linear(x, p["w_g1"]), p["w_g2"], p["b_g"])) / 16
        o = core(*[heads(y, h) for y in (q * k**-0.5, key, v, g)])
        o = merge(F.rms_norm(o, (k,), p["norm"], 1e-6))
        return F.linear(o * F.silu(F.linear(x, p["w_r"])), p["w_o"])

    @staticmethod
    def chunked(q, k, v, g):
        b, h, t, n = v.shape
        q, k, v, g = in_chunks(q, k, v, g)
        total = g.cumsum(3)
        decay = total.exp()
        q, faded = q * decay, k * (-total).exp()
        o = (q @ faded.transpose(-1, -2)).tril() @ v
        if o.shape[2] > 1:
            last = decay[:, :, :, -1:]
            new = (faded * last).transpose(-1, -2) @ v
            s, before = torch.zeros_like(new[:, :, 0]), []
            for a, u in each_step(last.transpose(-1, -2), new):
                before.append(s)
                s = a * s + u
            o = o + q @ torch.stack(before, 2)
        return o.reshape(b, h, t, n)

    ways = {
        "recurrence": lambda p, x, c: Gla.around(p, x, c, recurrence),
        "chunks of 32": lambda p, x, c: Gla.around(p, x, c, Gla.chunked),
    }


class Mamba2:
    @staticmethod
    def shapes(c):
        d, n, h = c["width"], c["state"], c["heads"]
        e = h * c["head_dim"]
        maps = {"in_proj_weight": (2 * e + 2 * n + h, d), "out_proj_weight": (d, e)}
        conv = {"conv1d_weight": (e + 2 * n, c["conv"]), "conv1d_bias": (e + 2 * n,)} if c["conv"] else {}
        return maps | conv | {"dt_bias": (h,), "A_log": (h,), "D": (h,), "norm_weight": (e,)}

    @staticmethod
    def around(p, u, c, core):
        n, h = c["state"], c["heads"]
        e = h * c["head_dim"]
        z, x, dt = F.linear(u, p["in_proj_weight"]).split([e, e + 2 * n, h], -1)
        if c["conv"]:
            x = causal_conv(x, p["conv1d_weight"], p["conv1d_bias"])
        x, b, out = F.silu(x).split([e, n, n], -1)
        x, dt = heads(x, h), F.softplus(dt + p["dt_bias"]).transpose(1, 2)[..., None]  # [B, H, T, P], [B, H, T, 1]
        g = -dt * p["A_log"].exp()[:, None, None]
        y = core(out[:, None], b[:, None], dt * x, g) + p["D"][:, None, None] * x
        y = F.rms_norm(merge(y) * F.silu(z), (e,), p["norm_weight"], 1e-5)
        return F.linear(y, p["out_proj_weight"])

    @staticmethod
    def chunked(q, k, v, g):
        """The SSD algorithm: one product of C and B for all heads, decays as a matrix of segment sums."""
        b, h, t, n = v.shape
        q, k, v, g = in_chunks(q, k, v, g)
        total = g.cumsum(3)
        lag = total - total.transpose(-1, -2)
        mask = torch.ones(lag.shape[-2:], dtype=torch.bool).triu(1)
        o = ((q @ k.transpose(-1, -2)) * lag.masked_fill(mask, -torch.inf).exp()) @ v
        if o.shape[2] > 1:
            last = total[:, :, :, -1:]
            new = k.transpose(-1, -2) @ ((last - total).exp() * v)
            s, before = torch.zeros_like(new[:, :, 0]), []
            for a, u in each_step(last.exp(), new):
                before.append(s)
                s = a * s + u
            o = o + total.exp() * (q @ torch.stack(before, 2))
        return o.reshape(b, h, t, n)

    ways = {
        "recurrence": lambda p, x, c: Mamba2.around(p, x, c, recurrence),
        "chunks of 32": lambda p, x, c: Mamba2.around(p, x, c, Mamba2.chunked),
    }


class Kda:
    @staticmethod
    def shapes(c):
        d, h, k = c["width"], c["heads"], c["head_dim"]
        n = h * k
        conv = {f"conv_{x}": (n, c["conv"]) for x in "qkv"} if c["conv"] else {}
        gate = {"w_g1": (k, d), "w_g2": (n, k), "A_log": (h, 1), "b_dt": (n,)}
        out = {"w_z1": (k, d), "w_z2": (n, k), "b_z": (n,), "norm": (k,), "w_o": (d, n)}
        return {f"w_{x}": (n, d) for x in "qkv"} | conv | {"w_beta": (h, d)} | gate | out

    @staticmethod
    def around(p, x, c, core):
        h, n = c["heads"], c["head_dim"]
        q, k, v = F.linear(x, torch.cat([p["w_q"], p["w_k"], p["w_v"]])).chunk(3, -1)
        if c["conv"]:
            q, k, v = [causal_conv(y, p[f"conv_{i}"]) for i, y in zip("qkv", (q, k, v))]
        q, k, v = [heads(F.silu(y), h) for y in (q, k, v)]
        q, k = [y * torch.rsqrt(y.square().sum(-1, keepdim=True) + 1e-6) for y in (q, k)]
        beta = torch.sigmoid(F.linear(x, p["w_beta"])).transpose(1, 2)[..., None]
        dt = heads(F.softplus(F.linear(F.linear(x, p["w_g1"]), p["w_g2"], p["b_dt"])), h)
        o = core(q * n**-0.5, k, v, beta, -p["A_log"].exp()[:, :, None] * dt)
        z = torch.sigmoid(F.linear(F.linear(x, p["w_z1"]), p["w_z2"], p["b_z"]))
        return F.linear(merge(F.rms_norm(o, (n,), p["norm"], 1e-6)) * z, p["w_o"])

    @staticmethod
    def recurrence(q, k, v, beta, g):
        s, out = torch.zeros(*k.shape[:2], k.shape[-1], v.shape[-1]), []
        for q, k, v, beta, a in each_step(q, k, v, beta, g.exp()):
            s = a[..., None] * s
            error = v - (k[..., None] * s).sum(-2)
            s = s + k[..., None] * (beta * error)[..., None, :]
            out.append((q[..., None] * s).sum(-2))
        return torch.stack(out, 2)

    @staticmethod
    def chunked(q, k, v, beta, g):
        b, h, t, n = k.shape
        q, k, v, beta, g = in_chunks(q, k, v, beta, g)
        total = g.cumsum(3)
        decay = total.exp()
        q, ahead, faded = q * decay, beta * k * decay, (k * (-total).exp()).transpose(-1, -2)
        a = (ahead @ faded).tril(-1) + torch.eye(k.shape[3])
        solve = lambda y: torch.linalg.solve_triangular(a, y, upper=False, unitriangular=True)
        local = (q @ faded).tril()
        if k.shape[2] == 1:
            return (local @ solve(beta * v)).view(b, h, t, n)
        u, w = solve(torch.cat([beta * v, ahead], -1)).chunk(2, -1)
        last = decay[:, :, :, -1:].transpose(-1, -2)
        s, out = torch.zeros(b, h, n, n), []
        for q, keys, u, w, local, a in each_step(q, faded * last, u, w, local, last):
            u = u - w @ s
            out.append(q @ s + local @ u)
            s = a * s + keys @ u
        return torch.cat(out, 2)

    ways = {
        "recurrence": lambda p, x, c: Kda.around(p, x, c, Kda.recurrence),
        "chunks of 32": lambda p, x, c: Kda.around(p, x, c, Kda.chunked),
    }


class Rwkv7:
    @staticmethod
    def shapes(c):
        d, h, k = c["width"], c["heads"], c["head_dim"]
        n = h * k
        mixed = {f"x_{m}": (d,) for m in "rwkvag"}
        rows = {m: (n,) for m in ("w0", "a0", "k_k", "k_a", "ln_x_weight", "ln_x_bias")}
        later = c["layer"] > 0
        low = {f"{m}{i}": (d, k) if i == 1 else (k, n) for m in "wag" + "v" * later for i in (1, 2)}
        rows |= {"v0": (n,)} if later else {}
        maps = {f"{m}_weight": (n, d) for m in ("receptance", "key", "value")}
        return mixed | rows | {"r_k": (h, k)} | low | maps | {"output_weight": (d, n)}

    @staticmethod
    def around(p, x, c, core):
        h, n = c["heads"], c["head_dim"]
        change = F.pad(x, (0, 0, 1, -1)) - x
        mixed = lambda m: x + change * p[f"x_{m}"]
        r = F.linear(mixed("r"), p["receptance_weight"])
        rate = torch.sigmoid(p["w0"] + torch.tanh(mixed("w") @ p["w1"]) @ p["w2"])
        k, v = F.linear(mixed("k"), p["key_weight"]), F.linear(mixed("v"), p["value_weight"])
        if "first" in c:  # the first layer's values
            v = v + (c["first"] - v) * torch.sigmoid(p["v0"] + mixed("v") @ p["v1"] @ p["v2"])
        else:
            c["first"] = v
        a = torch.sigmoid(p["a0"] + mixed("a") @ p["a1"] @ p["a2"])
        gate = torch.sigmoid(mixed("g") @ p["g1"]) @ p["g2"]
        kappa = F.normalize(heads(k * p["k_k"], h), dim=-1, eps=1e-12)
        k = k * (1 + (a - 1) * p["k_a"])
        r, g, k, v, a = [heads(y, h) for y in (r, -(torch.e**-0.5) * rate, k, v, a)]
        o = core(r, g, k, v, -kappa, a * kappa)
        o = merge(F.layer_norm(o, (n,), None, None, 64e-5)) * p["ln_x_weight"] + p["ln_x_bias"]
        own = (r * k * p["r_k"][:, None]).sum(-1, keepdim=True) * v
        return F.linear((o + merge(own)) * gate, p["output_weight"])

    @staticmethod
    def recurrence(r, g, k, v, a, b):
        s, out = torch.zeros(*k.shape[:2], k.shape[-1], v.shape[-1]), []
        for r, w, k, v, a, b in each_step(r, g.exp(), k, v, a, b):
            erased = (a[..., None] * s).sum(-2)
            s = w[..., None] * s + b[..., None] * erased[..., None, :] + k[..., None] * v[..., None, :]
            out.append((r[..., None] * s).sum(-2))
        return torch.stack(out, 2)

    @staticmethod
    def chunked(r, g, k, v, a, b):
        """Within a chunk the erased rows e solve (1 - tril(a b, -1)) e = tril(a k, -1) v + a S."""
        batch, h, t, n = k.shape
        r, g, k, v, a, b = in_chunks(r, g, k, v, a, b)
        total = g.cumsum(3)
        decay, back = total.exp(), (-total).exp()
        r, a = r * decay, a * (total - g).exp()
        k, b = [(y * back).transpose(-1, -2) for y in (k, b)]
        m = torch.eye(k.shape[-1]) - (a @ b).tril(-1)
        solve = lambda y: torch.linalg.solve_triangular(m, y, upper=False, unitriangular=True)
        write, erase = (r @ k).tril(), (r @ b).tril()
        u = (a @ k).tril(-1) @ v
        if k.shape[2] == 1:
            return (write @ v + erase @ solve(u)).view(batch, h, t, n)
        u, w = solve(torch.cat([u, a], -1)).chunk(2, -1)
        o = write @ v
        last = decay[:, :, :, -1:].transpose(-1, -2)
        new = (k * last) @ v
        s, out = torch.zeros(batch, h, n, n), []
        for r, e, u, w, b, new, o, a in each_step(r, erase, u, w, b * last, new, o, last):
            u = u + w @ s
            out.append(o + e @ u + r @ s)
            s = a * s + b @ u + new
        return torch.cat(out, 2)

    ways = {
        "recurrence": lambda p, x, c: Rwkv7.around(p, x, c, Rwkv7.recurrence),
        "chunks of 32": lambda p, x, c: Rwkv7.around(p, x, c, Rwkv7.chunked),
    }


MIXERS = {"gla": Gla, "kda": Kda, "rwkv7": Rwkv7, "mamba2": Mamba2}
