"""The models of src/models/ in JAX, with the parameters' names and shapes there, each in the formulations that XLA's CPU
backend was found to run fastest; and a training step of them in one jitted function.

Activations lie as 'tbd' [T, B, D], 'btd' [B, T, D] or 'dtb' [D, T, B]: where a model is narrow, XLA's loops are long only if
the batch is last.
"""
import math

import jax
import jax.numpy as jnp
from jax import lax

sigmoid, silu, tanh = jax.nn.sigmoid, jax.nn.silu, jnp.tanh


def scan(f, init, xs):
    return lax.scan(f, init, xs)[1]


def before(x):
    """x one step later, and zero at the first."""
    return jnp.concatenate([jnp.zeros_like(x[:1]), x[:-1]])


def recurrence(f, u):
    """h_t = f_t h_{t-1} + u_t along axis 0."""

    def step(h, fu):
        h = fu[0] * h + fu[1]
        return h, h

    return scan(step, jnp.zeros_like(u[0]), (f, u))


@jax.custom_vjp
def gated_scan(f, u):
    return recurrence(f, u)


def gated_scan_back(saved, dh):
    """The gradient of the gated scan: the same recurrence, backwards."""
    f, h = saved
    next_f = jnp.concatenate([f[1:], jnp.zeros_like(f[:1])])
    g = recurrence(next_f[::-1], dh[::-1])[::-1]
    return g * before(h), g


gated_scan.defvjp(lambda f, u: (h := recurrence(f, u), (f, h)), gated_scan_back)


def rotation(re, im, b_re, b_im):
    """h_t = λ h_{t-1} + b_t for a complex λ of every step, along axis 0."""

    def step(h, b):
        h = re * h[0] - im * h[1] + b[0], re * h[1] + im * h[0] + b[1]
        return h, h

    return scan(step, (jnp.zeros_like(b_re[0]),) * 2, (b_re, b_im))


@jax.custom_vjp
def rotated_scan(re, im, b_re, b_im):
    return rotation(re, im, b_re, b_im)


def rotated_scan_forward(re, im, b_re, b_im):
    h = rotation(re, im, b_re, b_im)
    return h, (re, im, h)


def rotated_scan_back(saved, dh):
    re, im, (h_re, h_im) = saved
    g_re, g_im = [g[::-1] for g in rotation(re, -im, dh[0][::-1], dh[1][::-1])]
    a, b, c, d = g_re[1:], g_im[1:], h_re[:-1], h_im[:-1]
    sums = tuple(range(a.ndim - re.ndim))
    return (a * c + b * d).sum(sums), (b * c - a * d).sum(sums), g_re, g_im


rotated_scan.defvjp(rotated_scan_forward, rotated_scan_back)


def selective(features_last):
    """Mamba's scan of dt, x [T, B, E], A [N, E], b, c [T, N, B] (or [T, E, B] where the batch is last). Its states are kept for
    the backward pass, and its exponentials computed again."""
    of_state = (lambda y: y[..., None]) if features_last else (lambda y: y[..., None, :])  # [N, B] beside [N, B, E]
    of_a = (lambda a: a[:, None]) if features_last else (lambda a: a[:, :, None])
    channels = 2 if features_last else 1

    def forward(dt, x, a, b, c):
        rate = of_a(a)

        def step(h, s):
            dt, x, b, c = s
            h = jnp.exp(dt * rate) * h + (dt * x) * of_state(b)
            return h, ((h * of_state(c)).sum(0), h)

        zero = jnp.zeros(jnp.broadcast_shapes(rate.shape, (1,) + x.shape[1:]), x.dtype)
        y, h = scan(step, zero, (dt, x, b, c))
        return y, (dt, x, a, b, c, h)

    def back(saved, dy):
        dt, x, a, b, c, h = saved
        rate = of_a(a)

        def step(carry, s):
            g, da = carry
            dt, x, b, c, h, h_before, dy = s
            g = g + dy * of_state(c)
            dc, db = (dy * h).sum(channels), ((dt * x) * g).sum(channels)
            du = (g * of_state(b)).sum(0)
            g = g * jnp.exp(dt * rate)
            through = g * h_before
            da = da + (through * dt).sum(3 - channels)
            return (g, da), (du * x + (through * rate).sum(0), du * dt, db, dc)

        (_, da), (ddt, dx, db, dc) = lax.scan(
            step, (jnp.zeros_like(h[0]), jnp.zeros_like(a)), (dt, x, b, c, h, before(h), dy), reverse=True
        )
        return ddt, dx, da, db, dc

    core = jax.custom_vjp(lambda *x: forward(*x)[0])
    core.defvjp(forward, back)
    return core


class Net:
    """The decoder of src/models/decoder.rs of sizes c, laid out as `layout`."""

    def __init__(self, c, layout):
        self.c, self.layout = c, layout
        self.last = layout != "dtb"  # whether the features are
        self.axis = -1 if self.last else 0
        self.mix = getattr(self, c["mixer"])

    def linear(self, x, w, b=None):
        y = x @ w.T if self.last else jnp.tensordot(w, x, 1)
        return y if b is None else y + self.of_feature(b)

    def of_feature(self, w):
        return w if self.last else w[:, None, None]

    def split(self, x, n):
        return jnp.split(x, n, self.axis)

    def norm(self, x, p, at):
        x = x - x.mean(self.axis, keepdims=True)
        x = x * lax.rsqrt((x * x).mean(self.axis, keepdims=True) + 1e-5)
        return x * self.of_feature(p[f"{at}norm.w"]) + self.of_feature(p[f"{at}norm.b"])

    def time_first(self, x):
        return jnp.moveaxis(x, 1, 0) if self.layout == "dtb" else x

    def back(self, x):
        return jnp.moveaxis(x, 0, 1) if self.layout == "dtb" else x

    def heads(self, x):
        """[B, H, T, K]; [H, K, T, B] where the batch is last."""
        h = self.c["heads"]
        return x.reshape(*x.shape[:2], h, -1).transpose(0, 2, 1, 3) if self.last else x.reshape(h, -1, *x.shape[1:])

    def merge(self, x):
        return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1) if self.last else x.reshape(-1, *x.shape[2:])

    def lstm(self, p, x):
        z = self.time_first(self.linear(x, p["w_ih"], p["b_ih"] + p["b_hh"]))
        w, axis = p["w_hh"], 1 if self.last else 0

        def step(state, z):
            h, c = state
            i, f, g, o = jnp.split(z + (h @ w.T if self.last else w @ h), 4, axis)
            c = sigmoid(f) * c + sigmoid(i) * tanh(g)
            h = sigmoid(o) * tanh(c)
            return (h, c), h

        zero = jnp.zeros_like(jnp.split(z[0], 4, axis)[0])
        return self.linear(self.back(scan(step, (zero, zero), z)), p["w_post"], p["b_post"])

    def quasi_lstm(self, p, x):
        f, i, z, o = self.split(self.linear(x, p["w"], p["b"]), 4)
        h = gated_scan(self.time_first(sigmoid(f + 1.0)), self.time_first(sigmoid(i) * tanh(z)))
        return self.linear(sigmoid(o) * tanh(self.back(h)), p["w_post"], p["b_post"])

    def lru(self, p, u):
        r, theta, gamma = jnp.exp(-jnp.exp(p["nu_log"])), jnp.exp(p["theta_log"]), jnp.exp(p["gamma_log"])[:, None]
        b_re, b_im = self.split(self.linear(u, jnp.concatenate([p["B_re"] * gamma, p["B_im"] * gamma])), 2)
        h = jnp.concatenate(rotated_scan(r * jnp.cos(theta), r * jnp.sin(theta), b_re, b_im), 2)
        y = self.linear(h, jnp.concatenate([p["C_re"], -p["C_im"]], 1)) + p["D"] * u
        g = jax.nn.gelu(y, approximate=True)
        return self.linear(g, p["w1"], p["b1"]) * sigmoid(self.linear(g, p["w2"], p["b2"]))

    def linear_transformer(self, p, x):
        q, k, v = self.split(self.linear(x, p["w_qkv"], p["b_qkv"]), 3)
        q, k, v = [self.heads(y) for y in (jax.nn.elu(q) + 1, jax.nn.elu(k) + 1, v)]
        if self.last:
            a = jnp.tril(q @ jnp.swapaxes(k, -1, -2))
            y = (a @ v) / (a.sum(-1, keepdims=True) + 1e-6)
        else:

            def step(state, x):
                (s, z), (q, k, v) = state, x
                s, z = s + k[:, :, None] * v[:, None], z + k
                return (s, z), (q[:, :, None] * s).sum(1) / ((q * z).sum(1) + 1e-6)[:, None]

            q, k, v = [jnp.moveaxis(y, 2, 0) for y in (q, k, v)]
            zero = jnp.zeros_like(k[0])
            y = jnp.moveaxis(scan(step, (zero[:, :, None] * zero[:, None], zero), (q, k, v)), 0, 2)
        return self.linear(self.merge(y), p["w_o"], p["b_o"])

    def gpt(self, p, x):
        """Attention, with queries in blocks of 64 and without the keys after them; the product is divided, not the weights."""
        q, k, v = [self.heads(y) for y in self.split(self.linear(x, p["w_qkv"], p["b_qkv"]), 3)]
        q = q * self.c["head_dim"] ** -0.5

        def block(start, end):
            a = q[:, :, start:end] @ jnp.swapaxes(k[:, :, :end], -1, -2)
            a = jnp.where(jnp.arange(start, end)[:, None] >= jnp.arange(end), a, -jnp.inf)
            a = jnp.exp(a - lax.stop_gradient(a.max(-1, keepdims=True)))
            return (a @ v[:, :, :end]) / a.sum(-1, keepdims=True)

        t = self.c["T"]
        y = jnp.concatenate([block(start, min(start + 64, t)) for start in range(0, t, 64)], 2)
        return self.linear(self.merge(y), p["w_o"], p["b_o"])

    def delta_net(self, p, x):
        y = silu(self.linear(x, jnp.concatenate([p["w_q"], p["w_k"], p["w_v"]])))
        q, k, v = [self.heads(y) for y in self.split(y, 3)]
        of_head = -1 if self.last else 1
        unit = lambda y: y * lax.rsqrt((y * y).sum(of_head, keepdims=True) + 1e-6)
        q, k = unit(q) * self.c["head_dim"] ** -0.5, unit(k)
        beta = self.heads(sigmoid(self.linear(x, p["w_beta"])))
        if self.last:  # all of the sequence as one chunk
            kt, eye = jnp.swapaxes(k, -1, -2), jnp.eye(k.shape[2])
            a = jnp.tril((beta * k) @ kt, -1) + eye
            u = jax.scipy.linalg.solve_triangular(a, beta * v, lower=True, unit_diagonal=True)
            y = jnp.tril(q @ kt) @ u
        else:

            def step(s, x):
                q, k, v, beta = x
                s = s + k[:, :, None] * (beta * (v - (k[:, :, None] * s).sum(1)))[:, None]
                return s, (q[:, :, None] * s).sum(1)

            q, k, v, beta = [jnp.moveaxis(y, 2, 0) for y in (q, k, v, beta)]
            zero = jnp.zeros_like(k[0])
            y = jnp.moveaxis(scan(step, zero[:, :, None] * zero[:, None], (q, k, v, beta)), 0, 2)
        y = y * lax.rsqrt((y * y).mean(of_head, keepdims=True) + 1e-6)
        y = y * (p["norm"] if self.last else p["norm"][:, None, None])
        return self.linear(self.merge(y), p["w_o"])

    def mamba(self, p, u):
        n, r, w = self.c["state"], self.c["dt_rank"], p["conv1d_weight"]
        x, z = self.split(self.linear(u, p["in_proj_weight"]), 2)
        time, steps, width = 1 - self.last, self.c["T"], w.shape[1]
        padded = jnp.pad(x, [(width - 1, 0) if i == time else (0, 0) for i in range(3)])
        tap = lambda j: self.of_feature(w[:, j]) * lax.slice_in_dim(padded, j, j + steps, axis=time)
        x = silu(sum(map(tap, range(width))) + self.of_feature(p["conv1d_bias"]))
        delta, b, c = jnp.split(self.linear(x, p["x_proj_weight"]), [r, r + n], self.axis)
        dt = jax.nn.softplus(self.linear(delta, p["dt_proj_weight"], p["dt_proj_bias"]))
        b, c = [jnp.swapaxes(y, 1, 2) if self.last else self.time_first(y) for y in (b, c)]  # [T, N, B]
        core = selective(self.last)
        y = self.back(core(self.time_first(dt), self.time_first(x), -jnp.exp(p["A_log"]).T, b, c))
        return self.linear((y + self.of_feature(p["D"]) * x) * silu(z), p["out_proj_weight"])

    def loss(self, p, tokens, targets):
        c = self.c
        e = [self.of_feature(e) for e in p["embedding"] * math.sqrt(c["width"])]
        x = jnp.where(tokens[..., None] > 0 if self.last else tokens[None] > 0, e[1], e[0])
        if "positions" in p:
            at = p["positions"]
            x = x + {"tbd": at[:, None], "btd": at, "dtb": at.T[:, :, None]}[self.layout]
        for l in range(c["layers"]):
            at = f"blocks.{l}."
            mixer = {n.removeprefix(at + "mixer."): w for n, w in p.items() if n.startswith(at + "mixer.")}
            x = x + self.mix(mixer, self.norm(x, p, at))
            if c["mlp"]:
                h = self.linear(self.norm(x, p, at + "mlp."), p[at + "mlp.w1"], p[at + "mlp.b1"])
                x = x + self.linear(jax.nn.gelu(h, approximate=True), p[at + "mlp.w2"], p[at + "mlp.b2"])
        y = self.linear(self.norm(x, p, ""), p["head"])
        zero, one = (y[..., 0], y[..., 1]) if self.last else y
        return (jnp.logaddexp(zero, one) - jnp.where(targets > 0, one, zero)).mean()


def training(net, shapes, parts, steps):
    """(start, step, loss and gradients): a step takes `steps` batches of `parts` parts each, whose gradients are added up,
    and moves all parameters as one vector by Adam."""
    names, ends = list(shapes), []
    for shape in shapes.values():
        ends.append((ends[-1] if ends else 0) + math.prod(shape))

    def named(flat):
        return {n: flat[end - math.prod(s) : end].reshape(s) for (n, s), end in zip(shapes.items(), ends)}

    def gradients(p, tokens, targets):
        if parts == 1:
            return jax.value_and_grad(net.loss)(p, tokens, targets)
        batch = 0 if net.layout == "btd" else 1
        part = lambda x: jnp.moveaxis(x.reshape(*x.shape[:batch], parts, -1, *x.shape[batch + 1 :]), batch, 0)
        add = lambda sums, x: (jax.tree.map(jnp.add, sums, jax.value_and_grad(net.loss)(p, *x)), None)
        zero = jax.tree.map(jnp.zeros_like, (jnp.float32(0), p))
        sums, _ = lax.scan(add, zero, (part(tokens), part(targets)))
        return jax.tree.map(lambda x: x / parts, sums)

    def one(state, batch):
        p, m, v, t = state
        loss, g = gradients(named(p), *batch)
        g, t = jnp.concatenate([g[n].reshape(-1) for n in names]), t + 1
        m, v = m + (1 - 0.9) * (g - m), 0.95 * v + (1 - 0.95) * g * g
        p = p - 1e-3 / (1 - 0.9**t) * m / (jnp.sqrt(v / (1 - 0.95**t)) + 1e-8)
        return (p, m, v, t), loss

    def step(state, tokens, targets):
        if steps == 1:
            return one(state, (tokens, targets))
        state, losses = lax.scan(one, state, (tokens, targets))
        return state, losses[-1]

    def start(p):
        flat = jnp.concatenate([jnp.asarray(p[n]).reshape(-1) for n in names])
        return flat, jnp.zeros_like(flat), jnp.zeros_like(flat), jnp.float32(0)

    return start, step, gradients
