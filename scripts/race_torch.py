"""PyTorch in the race (race.py): eager, in every way of torch_models.py, or one of them through torch.compile."""
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import torch_models
from cells import compare, serve


class Model:
    def __init__(self, c, way, compiled, path):
        ours = load_file(path)
        shapes = torch_models.shapes(c)
        model = torch_models.Decoder(c, way, {n: ours[f"param.{n}"] for n in shapes})
        self.tokens, self.targets = ours["tokens"].long(), ours["targets"].long().flatten()

        def loss(tokens, targets):
            return F.cross_entropy(model(tokens).flatten(0, 1), targets)

        self.loss = torch.compile(loss, dynamic=False) if compiled else loss
        # The betas are tapezoo's.
        self.adam = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, fused=True)
        loss = self.loss(self.tokens, self.targets)
        loss.backward()
        array = lambda x: x.detach().numpy()
        pairs = {"loss": (array(loss)[None], array(ours["loss"]))}
        pairs |= {n: (array(w.grad), array(ours[f"grad.{n}"])) for n, w in zip(model.names, model.all)}
        self.about = {"off": compare(pairs, 1e-4)}
        self.run(2)

    def run(self, n):
        for _ in range(n):
            self.adam.zero_grad(set_to_none=True)
            self.loss(self.tokens, self.targets).backward()
            self.adam.step()


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve(lambda r: Model(r["open"], r["way"], r["compiled"], r["weights"]))
