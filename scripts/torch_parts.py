"""What several mixers in PyTorch share: shapes, a convolution, and scans whose insides autograd does not record."""
import torch
import torch.nn.functional as F


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


class SelectiveScan(torch.autograd.Function):
    """Mamba's recurrence and its output, step by step: only the states are kept, the rest is computed again."""

    @staticmethod
    def forward(ctx, dt, x, a, b, c):
        batch, steps, e = x.shape
        h = x.new_empty(steps, batch, e, a.shape[1])
        y = torch.empty_like(x)
        for t in range(steps):
            torch.mul((dt[:, t] * x[:, t])[..., None], b[:, t, None], out=h[t])
            if t:
                h[t].addcmul_(torch.exp(dt[:, t, :, None] * a), h[t - 1])
            y[:, t] = (h[t] @ c[:, t, :, None])[..., 0]
        ctx.save_for_backward(dt, x, a, b, c, h)
        return y

    @staticmethod
    def backward(ctx, dy):
        dt, x, a, b, c, h = ctx.saved_tensors
        ddt, dx, da, db, dc = [torch.zeros_like(v) for v in (dt, x, a, b, c)]
        g = torch.zeros_like(h[0])
        for t in range(x.shape[1] - 1, -1, -1):
            g.addcmul_(dy[:, t, :, None], c[:, t, None])
            dc[:, t] = (dy[:, t, None] @ h[t])[:, 0]
            du = (g @ b[:, t, :, None])[..., 0]
            db[:, t] = ((dt[:, t] * x[:, t])[:, None] @ g)[:, 0]
            dx[:, t] = du * dt[:, t]
            ddt[:, t] = du * x[:, t]
            if t:
                a_bar = torch.exp(dt[:, t, :, None] * a)
                g.mul_(a_bar)
                step = g * h[t - 1]
                ddt[:, t] += (step * a).sum(-1)
                da += (step * dt[:, t, :, None]).sum(0)
        return ddt, dx, da, db, dc


# nn.LSTM's kernel: torch.compile would unroll it, step by step.
lstm = torch.compiler.disable(torch.lstm)
# One object each, by which torch.compile knows them again.
gated_scan, selective_scan = Scan.apply, SelectiveScan.apply
