#!/usr/bin/env python3
"""PyTorch's times for what `examples/timing` times, in rows of the same form; gpu_check.sh puts them side by side.

    gpu_torch.py cores [NAME..]    scaled_dot_product_attention by each of its kernels, cuDNN's LSTM, and what the
                                   device reaches in a copy and in a matrix product; where flash-linear-attention is
                                   found, its chunked kernels in bf16 ("fla linear_attention", "fla delta_rule", ..)
    gpu_torch.py steps [NAME..]    a training step of the `parity` default of each model, written eagerly

--device cpu --tiny sees whether it runs. The exit status is 3 where PyTorch, or a GPU that it sees, is missing.
"""
import argparse
import statistics
import sys
import time

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError as e:
    sys.exit(print(f"no PyTorch here: {e}") or 3)

# ---- timing


def once(work, device):
    """Seconds of `work`: between two events on a GPU, else by the clock."""
    if device == "cpu":
        start = time.perf_counter()
        work()
        return time.perf_counter() - start
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e-3


def median(work, device, budget):
    """Median seconds of one call, in samples of several calls, so that the device is never without work."""
    work()
    first = once(work, device)
    calls = min(max(int(0.02 / first), 1), 20) if budget else 1

    def several():
        for _ in range(calls):
            work()

    samples = min(max(int(budget / (first * calls)), 3), 50)
    return statistics.median(once(several, device) / calls for _ in range(samples))


def row(what, seconds, notes=""):
    took = f"{seconds * 1e3:.4f} ms"
    print(f"{what:<36} {took:>11}  {notes}", flush=True)


# ---- cores


class Best:
    """The rates that the device reaches: bytes a second in a copy, operations a second in a product."""

    def __init__(self, args, dtype):
        n, size = (1 << 28, 8192) if not args.tiny else (1 << 12, 64)
        x = torch.ones(n, device=args.device)
        y = torch.empty_like(x)
        self.copy = median(lambda: y.copy_(x), args.device, args.seconds)
        self.bytes = 2 * 4 * n / self.copy
        a, b = (torch.randn(size, size, device=args.device).to(dtype) for _ in range(2))
        self.product = median(lambda: a @ b, args.device, args.seconds)
        self.flops = 2 * size**3 / self.product

    def notes(self, seconds, moved, flops):
        rate, work = moved / seconds, flops / seconds
        return (f"{rate * 1e-9:.1f} GB/s, {100 * rate / self.bytes:.0f}% of a copy; "
                f"{work * 1e-12:.1f} TFLOP/s, {100 * work / self.flops:.0f}% of a product")


def short(dtype):
    return {torch.bfloat16: "bf16", torch.float32: "f32"}[dtype]


def passes(args, best, name, dtype, x, run, flops, note=""):
    """Rows of the forward and the backward pass of run(), whose inputs are x."""
    y = run()
    dy = torch.randn_like(y)
    size = sum(t.numel() * t.element_size() for t in x)
    out = y.numel() * y.element_size()
    # Backward alone: the graph is kept, so that it can run again.
    for what, work, moved, operations in [
        ("forward", run, size + out, flops[0]),
        ("backward", lambda: torch.autograd.grad(y, x, dy, retain_graph=True), 2 * size + out, flops[1]),
    ]:
        took = median(work, args.device, args.seconds)
        row(f"{name} {short(dtype)} {what}", took, best.notes(took, moved, operations) + note)


def attention(args, best, dtype):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    b, h, t, k = (8, 16, 4096, 64) if not args.tiny else (2, 2, 70, 16)
    q, k_, v = (torch.randn(b, h, t, k, device=args.device).to(dtype).requires_grad_() for _ in range(3))
    flops = [n * b * h * t * t * k for n in (2, 5)]
    for name, backend in [("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION),
                          ("efficient", SDPBackend.EFFICIENT_ATTENTION)]:
        with sdpa_kernel(backend):
            run = lambda: F.scaled_dot_product_attention(q, k_, v, is_causal=True)
            try:
                passes(args, best, f"torch attention {name}", dtype, [q, k_, v], run, flops)
            except RuntimeError as e:  # no such kernel for this type on this device
                print(f"# torch attention {name} {short(dtype)}: {str(e).splitlines()[0][:100]}", flush=True)


def lstm(args, best, dtype):
    b, t, d = (64, 512, 512) if not args.tiny else (3, 5, 32)
    net = nn.LSTM(d, d, batch_first=True).to(args.device, dtype)
    net.flatten_parameters()  # else they are copied at every call
    x = torch.randn(b, t, d, device=args.device).to(dtype).requires_grad_()
    inputs = [x, *net.parameters()]
    products = 8 * b * t * d * d
    for tf32 in [False, True] if dtype == torch.float32 and args.device != "cpu" else [False]:
        torch.backends.cudnn.allow_tf32 = tf32
        # With the product of x, which the core of tapezoo is given: its own time is the next row.
        name, note = "torch lstm" + (" tf32" if tf32 else ""), ", with W_ih x"
        passes(args, best, name, dtype, inputs, lambda: net(x)[0], [2 * products, 4 * products], note)
    w = net.weight_ih_l0
    passes(args, best, "torch lstm input product", dtype, [x, w], lambda: x @ w.T, [products, 2 * products])


def tune_less():
    """flash-linear-attention's autotuner tries every kernel in up to 48 ways, which takes minutes: only a few of them,
    with 4 warps and 2 or 3 stages."""
    from triton.runtime.autotuner import Autotuner

    begin = Autotuner.__init__

    def fewer(self, fn, arg_names, configs, *args, **kwargs):
        some = [c for c in configs or [] if c.num_warps == 4 and c.num_stages in (2, 3)]
        begin(self, fn, arg_names, some or configs, *args, **kwargs)

    Autotuner.__init__ = fewer


def fla(name):
    """The chunked form of flash-linear-attention; its autotuner has chosen before anything is timed."""

    def core(args, best, dtype):
        if dtype != torch.bfloat16 or args.device == "cpu":
            return  # its kernels are made for half precision on a GPU
        try:
            if not args.tune:
                tune_less()
            from fla.ops.delta_rule import chunk_delta_rule
            from fla.ops.gated_delta_rule import chunk_gated_delta_rule
            from fla.ops.gla import chunk_gla
            from fla.ops.kda import chunk_kda
            from fla.ops.simple_gla import chunk_simple_gla
        except ImportError as e:
            return print(f"# fla {name}: {e}", flush=True)
        b, t, h, k = (8, 4096, 16, 64) if not args.tiny else (1, 128, 2, 64)
        normal = lambda *shape: torch.randn(*shape, device=args.device).to(dtype)
        q, v, key = normal(b, t, h, k), normal(b, t, h, k), F.normalize(normal(b, t, h, k), dim=-1)
        beta = torch.rand(b, t, h, device=args.device).to(dtype)
        gate, channels = (-0.1 * torch.rand(*shape, device=args.device) for shape in [(b, t, h), (b, t, h, k)])
        run, *x = {
            "linear_attention": (chunk_simple_gla, q, key, v),
            "linear_attention, a gate a head": (chunk_simple_gla, q, key, v, gate),
            "linear_attention, a gate a channel": (chunk_gla, q, key, v, channels),
            "delta_rule": (chunk_delta_rule, q, key, v, beta),
            "gated_delta_rule": (chunk_gated_delta_rule, q, key, v, gate, beta),
            "kda": (chunk_kda, q, key, v, channels, beta),
        }[name]
        x = [one.detach().requires_grad_() for one in x]
        products = 4 if name.startswith("linear") else 9
        flops = [n * b * h * t * k * 128 for n in (products, 3 * products)]
        try:
            passes(args, best, f"fla {name}", dtype, x, lambda: run(*x)[0], flops)
        except RuntimeError as e:  # some versions of Triton are refused
            print(f"# fla {name}: {str(e).splitlines()[0][:200]}", flush=True)

    return core


FLA = ["linear_attention", "linear_attention, a gate a head", "linear_attention, a gate a channel", "delta_rule",
       "gated_delta_rule", "kda"]
CORES = {"attention": attention, "lstm": lstm} | {f"fla {name}": fla(name) for name in FLA}


def cores(args):
    for dtype in [torch.float32, torch.bfloat16]:
        best = Best(args, dtype)
        if dtype == torch.float32:
            row("torch copy", best.copy, f"{best.bytes * 1e-9:.1f} GB/s")
        row(f"torch matmul {short(dtype)}", best.product, f"{best.flops * 1e-12:.1f} TFLOP/s")
        for name in args.names or CORES:
            CORES[name](args, best, dtype)


# ---- the models of configs/default.toml, as one writes them without kernels of one's own

WIDTH, HEADS, K, MLP, STATE, CONV, BATCH, T = 16, 2, 8, 32, 8, 4, 32, 32


def heads(x):
    return x.view(*x.shape[:2], HEADS, -1).transpose(1, 2)  # [B, H, T, K]


def merge(x):
    return x.transpose(1, 2).flatten(2)


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.post = nn.LSTM(WIDTH, HEADS * K, batch_first=True), nn.Linear(HEADS * K, WIDTH)

    def forward(self, x):
        return self.post(self.lstm(x)[0])


class QuasiLstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.post = nn.Linear(WIDTH, 4 * HEADS * K), nn.Linear(HEADS * K, WIDTH)

    def forward(self, x):
        f, i, z, o = self.w(x).chunk(4, -1)
        f, u = torch.sigmoid(f + 1), torch.sigmoid(i) * torch.tanh(z)
        c, all_c = torch.zeros_like(u[:, 0]), []
        for f_t, u_t in zip(f.unbind(1), u.unbind(1)):
            c = f_t * c + u_t
            all_c.append(c)
        return self.post(torch.sigmoid(o) * torch.tanh(torch.stack(all_c, 1)))


class Lru(nn.Module):
    def __init__(self, n=16):
        super().__init__()
        self.nu, self.theta, self.gamma = (nn.Parameter(torch.randn(n) * 0.1) for _ in range(3))
        self.b = nn.Parameter(torch.randn(n, WIDTH, 2) / WIDTH**0.5)
        self.c = nn.Parameter(torch.randn(WIDTH, n, 2) / n**0.5)
        self.d, self.glu = nn.Parameter(torch.randn(WIDTH)), nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, u):
        decay = torch.polar(torch.exp(-torch.exp(self.nu)), torch.exp(self.theta))
        x = self.gamma.exp() * (u.to(torch.cfloat) @ torch.view_as_complex(self.b).T)
        h, all_h = torch.zeros_like(x[:, 0]), []
        for x_t in x.unbind(1):
            h = decay * h + x_t
            all_h.append(h)
        y = (torch.stack(all_h, 1) @ torch.view_as_complex(self.c).T).real + self.d * u
        return F.glu(self.glu(F.gelu(y, approximate="tanh")), -1)


class LinearTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * HEADS * K), nn.Linear(HEADS * K, WIDTH)

    def forward(self, x):
        q, k, v = map(heads, self.qkv(x).chunk(3, -1))
        a = ((F.elu(q) + 1) @ (F.elu(k) + 1).transpose(-1, -2)).tril()
        return self.out(merge(a @ v / (a.sum(-1, keepdim=True) + 1e-6)))


class Gpt(LinearTransformer):
    def forward(self, x):
        q, k, v = map(heads, self.qkv(x).chunk(3, -1))
        return self.out(merge(F.scaled_dot_product_attention(q, k, v, is_causal=True)))


def conv(layer, x):
    return F.silu(layer(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))


class DeltaNet(nn.Module):
    def __init__(self):
        super().__init__()
        inner = HEADS * K
        self.qkv, self.beta = nn.Linear(WIDTH, 3 * inner, bias=False), nn.Linear(WIDTH, HEADS, bias=False)
        self.conv = nn.Conv1d(3 * inner, 3 * inner, CONV, groups=3 * inner, padding=CONV - 1, bias=False)
        self.norm, self.out = nn.Parameter(torch.ones(K)), nn.Linear(inner, WIDTH, bias=False)

    def forward(self, x):
        q, k, v = map(heads, conv(self.conv, self.qkv(x)).chunk(3, -1))
        q, k = F.normalize(q, dim=-1) * K**-0.5, F.normalize(k, dim=-1)
        beta = torch.sigmoid(self.beta(x)).transpose(1, 2)[..., None]
        # The chunked form with all of T as one chunk.
        bk = beta * k
        m = (bk @ k.transpose(-1, -2)).tril(-1)
        u = torch.linalg.solve_triangular(m, beta * v, upper=False, unitriangular=True)
        o = (q @ k.transpose(-1, -2)).tril() @ u
        return self.out(merge(o * torch.rsqrt(o.square().mean(-1, keepdim=True) + 1e-6) * self.norm))


class Mamba(nn.Module):
    def __init__(self, n=STATE, rank=1):
        super().__init__()
        e = 2 * WIDTH
        self.w_in, self.w_x = nn.Linear(WIDTH, 2 * e, bias=False), nn.Linear(e, rank + 2 * n, bias=False)
        self.w_dt, self.w_out = nn.Linear(rank, e), nn.Linear(e, WIDTH, bias=False)
        self.conv = nn.Conv1d(e, e, CONV, groups=e, padding=CONV - 1)
        self.a_log, self.d = nn.Parameter(torch.arange(1.0, n + 1).log().repeat(e, 1)), nn.Parameter(torch.ones(e))
        self.split = [rank, n, n]

    def forward(self, u):
        x, z = self.w_in(u).chunk(2, -1)
        x = conv(self.conv, x)
        dt, b, c = self.w_x(x).split(self.split, -1)
        dt = F.softplus(self.w_dt(dt))
        decay = torch.exp(dt[..., None] * -self.a_log.exp())  # [B, T, E, N]
        inputs = (dt * x)[..., None] * b[:, :, None]
        h, y = torch.zeros_like(inputs[:, 0]), []
        for decay_t, input_t, c_t in zip(decay.unbind(1), inputs.unbind(1), c.unbind(1)):
            h = decay_t * h + input_t
            y.append((h @ c_t[..., None])[..., 0])
        return self.w_out((torch.stack(y, 1) + self.d * x) * F.silu(z))


MODELS = {"lstm": Lstm, "quasi_lstm": QuasiLstm, "lru": Lru, "linear_transformer": LinearTransformer, "gpt": Gpt,
          "delta_net": DeltaNet, "mamba": Mamba}


class Decoder(nn.Module):
    def __init__(self, name):
        super().__init__()
        mlp = lambda: nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, MLP), nn.GELU("tanh"), nn.Linear(MLP, WIDTH))
        self.embedding = nn.Embedding(2, WIDTH)
        self.positions = nn.Parameter(torch.randn(256, WIDTH) * 0.1) if name == "gpt" else None
        self.mixers = nn.ModuleList(nn.Sequential(nn.LayerNorm(WIDTH), MODELS[name]()) for _ in range(2))
        self.mlps = nn.ModuleList(mlp() if name != "mamba" else nn.Identity() for _ in range(2))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2, bias=False))
        self.has_mlp = name != "mamba"

    def forward(self, tokens):
        x = self.embedding(tokens) * WIDTH**0.5
        if self.positions is not None:
            x = x + self.positions[: tokens.shape[1]]
        for mixer, mlp in zip(self.mixers, self.mlps):
            x = x + mixer(x)
            if self.has_mlp:
                x = x + mlp(x)
        return self.head(x)


def steps(args):
    for name in args.names or MODELS:
        model = Decoder(name).to(args.device)
        adam = torch.optim.Adam(model.parameters(), lr=5e-3, betas=(0.9, 0.95), fused=args.device != "cpu")

        def step():
            bits = torch.randint(2, (BATCH, T), device=args.device)
            loss = F.cross_entropy(model(bits).flatten(0, 1), (bits.cumsum(1) % 2).flatten())
            adam.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adam.step()

        took = median(step, args.device, args.seconds)
        row(f"torch step {name} f32", took, f"{1 / took:.0f} steps/s, eager")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=["cores", "steps"])
    p.add_argument("names", nargs="*")
    p.add_argument("--device", default="cuda")
    p.add_argument("--tiny", action="store_true")
    p.add_argument("--tune", action="store_true", help="let flash-linear-attention try all that it knows: minutes")
    p.add_argument("--seconds", type=float, default=0.3, help="about how long each row is measured")
    args = p.parse_args()
    args.seconds = 0.0 if args.tiny else args.seconds
    known = CORES if args.what == "cores" else MODELS
    if unknown := [name for name in args.names if name not in known]:
        p.error(f"'{unknown[0]}': expected one of {', '.join(known)}")
    if args.device != "cpu" and not torch.cuda.is_available():
        print(f"PyTorch {torch.__version__} sees no CUDA device: nothing timed")
        sys.exit(3)
    # As tapezoo: full single precision in products.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    (cores if args.what == "cores" else steps)(args)


if __name__ == "__main__":
    main()
