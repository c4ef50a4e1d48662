"""The cells of the races: which models at which sizes, and how to ask a program for their training steps."""
import json
import os
import subprocess
import sys
import time

MODELS = "lstm quasi_lstm lru linear_transformer gpt delta_net mamba".split()
WIDE = "slstm mlstm gated_delta_net delta_product".split()  # at the wide sizes alone
MEMORIES = "gla kda rwkv7 mamba2".split()  # at d64 and LONG
FURTHER = "fox mamba3".split()  # at d64, in the table of kernels alone
LONG = "T1024"
SIZES = {
    "T32": "published sizes, B=32, T=32",
    "T256": "published sizes, B=32, T=256",
    "d64": "2 layers, d=64, B=128, T=32",
    "d128": "2 layers, d=128, B=128, T=32",
}
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "PYTHONDONTWRITEBYTECODE": "1"}


def sizes(mixer, size):
    """The sizes of a cell, under the names of a configuration file; B and T besides."""
    if size not in (*SIZES, LONG):
        sys.exit(f"{size}: expected one of {', '.join((*SIZES, LONG))}")
    c = {"layers": 2, "expand": 2, "mixer": mixer, "positions": "none", "heads": 4}
    if mixer in ("linear_transformer", "gpt", "delta_net"):
        c["positions"] = "learned"
    if size in ("T32", "T256"):
        c |= {"B": 32, "T": int(size[1:]), "width": 4, "head_dim": 4, "mlp": 8, "state": 8, "conv": 0, "dt_rank": 1}
        own = {"lru": {"width": 128, "state": 4, "mlp": 0}, "mamba": {"mlp": 0, "conv": 3}}
    else:
        d, batch = (64, {"B": 8, "T": 1024}) if size == LONG else (int(size[1:]), {"B": 128, "T": 32})
        c |= batch | {"width": d, "head_dim": d // 4, "mlp": 4 * d, "state": 16, "conv": 0, "dt_rank": d // 16}
        own = {
            "lstm": {"mlp": 0}, "quasi_lstm": {"mlp": 0}, "lru": {"state": d}, "mamba": {"mlp": 0, "conv": 4},
            # The xLSTM's blocks: 4 d² weights beside the sLSTM; an inner width of 2 d.
            "slstm": {"mlp": 2 * d, "conv": 4}, "mlstm": {"mlp": 0, "conv": 4, "head_dim": d // 2},
            "mamba2": {"mlp": 0, "conv": 4, "head_dim": d // 2},
        }
    return c | own.get(mixer, {})


def toml(c, **more):
    own = {k: v for k, v in c.items() if k not in ("mixer", "B", "T")} | more.pop("model", {})
    top = {
        "models": [c["mixer"]], "batch": c["B"], "train_len": c["T"], "eval_lens": [c["T"]], "device": "cpu",
        "schedule": "constant", "warmup": 0, "lr": 1e-3, "clip": 0.0, "weight_decay": 0.0,
    }
    lines = lambda table: [f"{k} = {json.dumps(v)}" for k, v in table.items()]
    return "\n".join([*lines(top | more), "[task]", 'name = "parity"', "[model]", *lines(own)])


class Program:
    """examples/step_time.rs, or a competitor that answers as it does: a line of JSON for each."""

    def __init__(self, *command, **environment):
        self.command = command
        self.process = subprocess.Popen(
            ["taskset", "-c", "1", *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | ONE_THREAD | environment,
        )

    def answer(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"error": "it ended"}

    def ask(self, **request):
        answer = self.answer(**request)
        if "error" in answer:
            sys.exit(f"{' '.join(self.command)}: {answer['error']}")
        return answer

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def build(*what):
    subprocess.run(["cargo", "build", "--release", "--quiet", *what], check=True)


def processor():
    """The processor of this machine, as the pages name it."""
    with open("/proc/cpuinfo") as f:
        info = dict(line.split(":", 1) for line in f.read().split("\n\n")[0].splitlines() if ":" in line)
    info = {k.strip(): v.strip() for k, v in info.items()}
    flags = info.get("flags", "").split()
    level = "AVX-512" if "avx512f" in flags else "AVX2" if "avx2" in flags else "no AVX2"
    return f"{info.get('model name')} (family {info.get('cpu family')}, model {info.get('model')}, {level})"


def serve(open_):
    """Answer requests as a `Program`: `open_(request)` gives what has `about` and takes steps by `run(n)`."""
    answers, it = os.fdopen(os.dup(1), "w"), None
    os.dup2(2, 1)  # what libraries print goes elsewhere
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "open" in request:
                it = open_(request)
                answer = it.about
            else:
                start = time.process_time()
                it.run(request["steps"])
                answer = {"ms": (time.process_time() - start) * 1e3 / request["steps"]}
        except Exception as e:
            answer = {"error": f"{type(e).__name__}: {e}"[:500]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def compare(pairs, tolerance):
    """The largest relative error of {name: (theirs, ours)}, the loss first; an error beyond the tolerance is raised."""
    rms = lambda x: float((x.astype("f8") ** 2).mean() ** 0.5)
    # A gradient that is zero but for rounding, as that of a bias before a norm, is measured by the others.
    least = 1e-3 * max(rms(b) for name, (_, b) in pairs.items() if name != "loss")
    worst = 0.0
    for name, (a, b) in pairs.items():
        error = rms(a.astype("f8") - b) / max(rms(b), least)
        if not error <= tolerance:
            raise ValueError(f"{name} differs by {error:.1e}: not the same model")
        worst = max(worst, error)
    return worst
