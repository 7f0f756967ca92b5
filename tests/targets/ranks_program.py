"""A program of several ranks that uses settings, as torchrun starts it: KIND SETTINGS RESULT.

Each rank trains three steps on data of its own. What rank 0 has then, and how often compiled code
ran, goes to the file RESULT.
"""

import json
import os
import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import autocompile

KIND, SETTINGS, RESULT = sys.argv[1:]
STEPS, SIZE = 3, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.back = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.back(self.wide(x).tanh())


def made():
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), nn.Linear(8, 4))


def data():
    """Of all ranks; rank r has each rows r, r + count, ..."""
    torch.manual_seed(1)
    return torch.randn(STEPS * SIZE * 2, 8)


def batches():
    mine = data()[dist.get_rank() :: dist.get_world_size()]
    return mine.split(SIZE)


def loop(called, optimizer, backward=lambda loss: loss.backward()):
    for x in batches():
        optimizer.zero_grad()
        backward(called(x).square().mean())
        optimizer.step()


def by_hand():
    dist.init_process_group("gloo")
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if KIND == "before":
        autocompile.apply(model, SETTINGS, "train_step", optimizer=optimizer)
    wrapped = DistributedDataParallel(model)
    if KIND == "after":
        autocompile.apply(wrapped, SETTINGS, "train_step", optimizer=optimizer)
    loop(wrapped, optimizer)
    return model


def by_fsdp2():
    """Blocks of their own and the rest are split between ranks, then an optimizer is made."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    model, mesh = made(), init_device_mesh("cpu", (dist.get_world_size(),))
    if KIND == "fsdp2_before":
        autocompile.apply(model, SETTINGS, "train_step")
    for module in (model[0], model[1], model):
        fully_shard(module, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if KIND == "fsdp2_after":
        autocompile.apply(model, SETTINGS, "train_step", optimizer=optimizer)
    loop(model, optimizer)
    return model


def by_fsdp2_too_late():
    """The optimizer has parameters that the model does not have any more."""
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fully_shard(model)
    try:
        autocompile.apply(model, SETTINGS, "train_step", optimizer=optimizer)
    except autocompile.errors.UsageError as error:
        warnings.warn(str(error), stacklevel=1)
    return model


def by_accelerate():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    autocompile.apply(model, SETTINGS, "train_step", optimizer=optimizer)
    wrapped, optimizer = accelerator.prepare(model, optimizer)
    assert isinstance(wrapped, DistributedDataParallel)
    loop(wrapped, optimizer, accelerator.backward)
    return model


def by_lightning():
    import pytorch_lightning as lightning
    from pytorch_lightning.strategies import ModelParallelStrategy
    from torch.distributed.fsdp import fully_shard

    from autocompile.lightning import TunedCallback

    class Lit(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = made()

        def configure_model(self):
            if KIND == "lightning_fsdp2":
                fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

        def training_step(self, x, number):
            return self.net(x).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    lit = Lit()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=ModelParallelStrategy() if KIND == "lightning_fsdp2" else "ddp",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[TunedCallback(SETTINGS, module="net")],
    )
    trainer.fit(lit, torch.utils.data.DataLoader(data(), batch_size=SIZE))
    return lit.net


def by_transformers():
    import transformers

    from autocompile.transformers import TunedCallback

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = made()

        def forward(self, x):
            return {"loss": self.net(x).square().mean()}

    model = Net()
    arguments = transformers.TrainingArguments(
        "out",
        per_device_train_batch_size=SIZE,
        max_steps=STEPS,
        use_cpu=True,
        ddp_backend="gloo",
        report_to=[],
        save_strategy="no",
        optim="sgd",
        learning_rate=0.1,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        disable_tqdm=True,
    )
    transformers.Trainer(
        model,
        arguments,
        train_dataset=[{"x": x} for x in data()],
        callbacks=[TunedCallback(SETTINGS)],
    ).train()
    return model


KINDS = {
    "fsdp2_before": by_fsdp2,
    "fsdp2_after": by_fsdp2,
    "fsdp2_too_late": by_fsdp2_too_late,
    "accelerate": by_accelerate,
    "lightning": by_lightning,
    "lightning_fsdp2": by_lightning,
    "transformers": by_transformers,
}
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    model = KINDS.get(KIND, by_hand)()
weights = [getattr(p, "full_tensor", lambda p=p: p)() for p in model.parameters()]
if dist.get_rank() == 0:
    compiled = vars(model).get("_compiled_call_impl")
    found = {
        "calls": compiled.calls if compiled else 0,
        "graphs": compiled.graphs if compiled else 0,
        "weights": [p.tolist() for p in weights],
        "said": [str(each.message) for each in said],
    }
    with open(RESULT, "w") as file:
        json.dump(found, file)
dist.barrier()
# At a normal exit a thread of Gloo aborts the process in some runs (torch 2.13).
os._exit(0)
