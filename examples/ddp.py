"""A training step on several ranks: tuned as one program, and then used by torchrun.

autocompile tune examples/ddp.py --ranks 2
autocompile export last -o tuned.json
torchrun --nproc-per-node 2 examples/ddp.py tuned.json
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F


class Policy(nn.Module):
    """What a robot does next, from what it has seen last: a small transformer."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Linear(32, 128), nn.Linear(128, 7)
        layer = nn.TransformerEncoderLayer(128, 4, 512, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3)

    def forward(self, seen):
        return self.head(self.encoder(self.embed(seen))[:, -1])


def get_model():
    return Policy()


def get_inputs(batch_size):  # of one rank, which draws its own
    return torch.randn(batch_size, 16, 32)


def get_loss(actions, seen):
    return F.mse_loss(actions, seen[:, -1, :7])


def get_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def main(settings):
    """A training program as it is without autocompile, and one line."""
    import torch.distributed as dist

    import autocompile

    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank = dist.get_rank()
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    torch.manual_seed(0)
    model = get_model().to(device)
    optimizer = get_optimizer(model)
    # Before DistributedDataParallel or after it: the compiled code is the same.
    autocompile.apply(model, settings, "train_step", optimizer=optimizer)
    wrapped = nn.parallel.DistributedDataParallel(model)
    torch.manual_seed(1 + rank)
    for step in range(100):
        seen = get_inputs(16).to(device)
        optimizer.zero_grad()
        loss = get_loss(wrapped(seen), seen)
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step:3d}  loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
