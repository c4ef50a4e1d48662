"""The cells of the race: which models at which sizes, and how to ask examples/step_time.rs for their steps."""
import json
import subprocess
import sys


def sizes(mixer, size):
    """The sizes of a cell, under the names of a configuration file; B and T besides."""
    c = {"layers": 2, "expand": 2, "mixer": mixer, "positions": "none", "heads": 4}
    if mixer in ("linear_transformer", "gpt", "delta_net"):
        c["positions"] = "learned"
    if size in ("T32", "T256"):
        c |= {"B": 32, "T": int(size[1:]), "width": 4, "head_dim": 4, "mlp": 8, "state": 8, "conv": 0, "dt_rank": 1}
        own = {"lru": {"width": 128, "state": 4, "mlp": 0}, "mamba": {"mlp": 0, "conv": 3}}
    else:
        d = int(size[1:])
        c |= {"B": 128, "T": 32, "width": d, "head_dim": d // 4, "mlp": 4 * d, "state": 16, "conv": 0, "dt_rank": d // 16}
        own = {
            "lstm": {"mlp": 0}, "quasi_lstm": {"mlp": 0}, "lru": {"state": d}, "mamba": {"mlp": 0, "conv": 4},
            # The xLSTM's blocks: 4 d² weights beside the sLSTM; an inner width of 2 d.
            "slstm": {"mlp": 2 * d, "conv": 4}, "mlstm": {"mlp": 0, "conv": 4, "head_dim": d // 2},
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


class Ours:
    """examples/step_time.rs, answering."""

    def __init__(self, *program):
        self.process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        answer = json.loads(line) if line else {"error": "step_time ended"}
        if "error" in answer:
            sys.exit(f"tapezoo: {answer['error']}")
        return answer
