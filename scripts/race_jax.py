"""JAX in the race (race.py): a training step with Adam as one jitted function, its buffers given away, XLA on the CPU.

`WAYS`: for each model at each size the formulation that was fastest of those tried: how activations lie, in how many parts
the batch goes, how many steps a call takes, and whether XLA may reorder arithmetic (fast-math).
"""

WAYS = {
    "lstm": [("dtb", 1, 1, False), ("dtb", 1, 1, True), ("tbd", 4, 1, True), ("tbd", 1, 1, True)],
    "quasi_lstm": [("dtb", 1, 16, False), ("dtb", 1, 4, False), ("tbd", 8, 1, True), ("tbd", 16, 1, True)],
    "lru": [("tbd", 4, 1, True), ("tbd", 16, 1, True), ("tbd", 16, 1, True), ("tbd", 8, 1, True)],
    "linear_transformer": [("dtb", 1, 16, False), ("dtb", 4, 4, True), ("btd", 8, 1, True), ("btd", 16, 1, True)],
    "gpt": [("btd", 1, 16, True), ("btd", 8, 1, True), ("btd", 8, 1, True), ("btd", 8, 1, True)],
    "delta_net": [("dtb", 1, 1, False), ("dtb", 4, 4, True), ("btd", 16, 1, True), ("btd", 16, 1, True)],
    "mamba": [("dtb", 1, 16, False), ("dtb", 1, 4, False), ("tbd", 16, 1, True), ("tbd", 16, 1, True)],
}


def way(mixer, size):
    return WAYS[mixer][["T32", "T256", "d64", "d128"].index(size)]


def said(way):
    layout, parts, steps, fast = way
    core = {"dtb": "batch last", "tbd": "time first", "btd": "batch first"}[layout]
    more = [f"{parts} parts"] * (parts > 1) + [f"{steps} steps a call"] * (steps > 1) + ["fast-math"] * fast
    return ", ".join([core, *more])


def environment(way):
    fast = " --xla_cpu_enable_fast_math=true" if way[3] else ""
    flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1" + fast
    return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}


class Model:
    def __init__(self, c, way, path):
        import jax
        import jax.numpy as jnp
        import numpy
        from safetensors.numpy import load_file

        from cells import compare
        from jax_models import Net, training

        layout, parts, self.steps, _ = way
        ours = load_file(path)
        p = {n.removeprefix("param."): w for n, w in ours.items() if n.startswith("param.")}
        start, step, gradients = training(Net(c, layout), {n: w.shape for n, w in p.items()}, parts, self.steps)
        lie = lambda x: jnp.asarray(x if layout == "btd" else x.T, jnp.int32)
        batch = [lie(ours["tokens"]), lie(ours["targets"])]
        loss, grads = jax.jit(gradients)(p, *batch)
        pairs = {"loss": (numpy.asarray(loss)[None], ours["loss"])}
        pairs |= {n: (numpy.asarray(grads[n]), ours[f"grad.{n}"]) for n in p}
        self.about = {"off": compare(pairs, 1e-4)}
        if self.steps > 1:
            batch = [jnp.broadcast_to(x, (self.steps, *x.shape)) for x in batch]
        self.state, self.batch = start(p), batch
        self.step, self.wait = jax.jit(step, donate_argnums=0), jax.block_until_ready
        self.run(self.steps)

    def run(self, n):
        for _ in range(n // self.steps):
            self.state, loss = self.step(self.state, *self.batch)
        self.wait((self.state, loss))


if __name__ == "__main__":
    from cells import serve

    import jax

    jax.config.update("jax_cpu_enable_async_dispatch", False)
    serve(lambda r: Model(r["open"], r["way"], r["weights"]))
