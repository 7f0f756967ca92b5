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


def made():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


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

    from autocompile.lightning import TunedCallback

    class Lit(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = made()

        def training_step(self, x, number):
            return self.net(x).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    lit = Lit()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
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
    "accelerate": by_accelerate,
    "lightning": by_lightning,
    "transformers": by_transformers,
}
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    model = KINDS.get(KIND, by_hand)()
if dist.get_rank() == 0:
    compiled = vars(model).get("_compiled_call_impl")
    found = {
        "calls": compiled.calls if compiled else 0,
        "graphs": compiled.graphs if compiled else 0,
        "weights": [p.tolist() for p in model.parameters()],
        "said": [str(each.message) for each in said],
    }
    with open(RESULT, "w") as file:
        json.dump(found, file)
dist.barrier()
# At a normal exit a thread of Gloo aborts the process in some runs (torch 2.13).
os._exit(0)
