"""The life of a program with PyTorch Lightning and our callback."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import life
import pytest
import torch
from life import BATCH, CLIP, CONFIG, STEPS, Life, Net, Values, batch, loss_of, values

pytest.importorskip("pytorch_lightning")
import pytorch_lightning as lightning

from autocompile.lightning import TunedCallback

pytestmark = [
    pytest.mark.usefixtures("_dynamo_as_it_was", "_one_thread", "work"),
    pytest.mark.filterwarnings("ignore"),  # Lightning's, of workers and devices
]


class Lit(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.outputs = Net(), list[torch.Tensor]()

    def training_step(self, given: Any, _: int) -> torch.Tensor:
        x, labels = given
        return loss_of(self.net(x.to(self.dtype)), labels)

    def test_step(self, given: Any, number: int) -> None:
        self.outputs.append(self.net(given[0]))

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), **life.ADAM)


class Batches(torch.utils.data.Dataset[Any]):
    """Micro-batches from a number on."""

    def __init__(self, begin: int, count: int, sizes: tuple[int, ...] = ()) -> None:
        self.begin, self.sizes = begin, sizes or (BATCH,) * count

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, place: int) -> Any:
        return batch(self.begin + place, self.sizes[place])


def loader(begin: int, count: int, sizes: tuple[int, ...] = ()) -> Any:
    return torch.utils.data.DataLoader(Batches(begin, count, sizes), batch_size=None)


def trainer_of(settings: Path | None, steps: int, **given: Any) -> lightning.Trainer:
    names = ("logger", "checkpointing", "progress_bar", "model_summary")
    silent = {n if n == "logger" else f"enable_{n}": False for n in names}
    callbacks = [TunedCallback(settings, module="net")] if settings else []
    return lightning.Trainer(
        max_steps=steps,
        accumulate_grad_batches=life.ACCUMULATED,
        gradient_clip_val=CLIP,
        callbacks=callbacks,
        accelerator="cpu",
        num_sanity_val_steps=0,
        **{**silent, **given},
    )


class Program:
    """A LightningModule and the trainer of its last fit."""

    def __init__(self, settings: Path | None) -> None:
        self.settings, self.model, self.number = settings, Lit(), 0

    def fit(self, steps: int = STEPS, checkpoint: Any = None, **given: Any) -> Values:
        """So many steps more, as a new ``fit``; of a checkpoint also its optimizer goes on."""
        before, done = self.model.net.uncompiled, 0
        if checkpoint:
            done = torch.load(checkpoint, weights_only=False)["global_step"]
        self.trainer = trainer_of(self.settings, done + steps, **given)
        count = steps * life.ACCUMULATED
        data = loader(self.number, count)
        self.trainer.fit(self.model, data, ckpt_path=checkpoint, weights_only=False)
        self.number += count
        if self.settings:
            assert self.model.net.uncompiled == before
            assert self.model.net._compiled_call_impl.calls > count - life.ACCUMULATED
            weight = self.model.net.body[0].weight
            assert weight.is_contiguous(memory_format=torch.channels_last)
            assert all(g["fused"] for g in self.trainer.optimizers[0].param_groups)
        return values(self.model.net)


def go_on(settings: str, saved: str, after: str, number: str) -> None:
    program = Program(Path(settings) if settings else None)
    program.number = int(number)
    program.fit(checkpoint=saved)
    program.trainer.save_checkpoint(after)


def program_life(settings: Path | None, folder: Path, fresh: bool) -> Life:
    program = Program(settings)
    yield life.BEGUN, values(program.model.net)
    yield life.TRAINED, program.fit()

    saved, after = (folder / f"{n}-{bool(settings)}.ckpt" for n in ("saved", "after"))
    program.trainer.save_checkpoint(saved)
    state = torch.load(saved, weights_only=False)
    assert not state["optimizer_states"][0]["param_groups"][0]["fused"]
    yield (
        life.SAVED,
        {k.removeprefix("net."): x for k, x in state["state_dict"].items() if x.dim()},
    )

    texts = str(settings or ""), str(saved), str(after), str(program.number)
    if settings and fresh:
        life.in_fresh_process(go_on, *texts)
    else:
        go_on(*texts)
    number, program = program.number + STEPS * life.ACCUMULATED, Program(settings)
    program.number = number
    program.model.load_state_dict(torch.load(after, weights_only=False)["state_dict"])
    yield life.RESUMED, values(program.model.net)

    sizes = life.EVALUATION
    trainer_of(None, 1).test(program.model, loader(0, 0, sizes), verbose=False)
    yield life.EVALUATED, {"outputs": torch.cat(program.model.outputs)}
    yield life.GONE_ON, program.fit(checkpoint=str(after))
    program.trainer.test(program.model, loader(0, 0, sizes), verbose=False)  # compiled

    program.trainer.save_checkpoint(saved)
    untuned = Program(None)
    yield life.UNTUNED, untuned.fit(checkpoint=str(saved))

    for stage, way in (
        (life.DEEPCOPIED, copy.deepcopy),
        (life.PICKLED, lambda made: pickle.loads(pickle.dumps(made))),
    ):
        before = values(program.model.net)
        copied = copy.copy(program)
        program.model.trainer = None
        copied.model = way(program.model)
        assert copied.model.net._compiled_call_impl is None  # until the next fit
        yield stage, copied.fit(5)
        torch.testing.assert_close(values(program.model.net), before, rtol=0, atol=0)

    program.model.to(torch.float64)
    yield life.CONVERTED, program.fit(5, precision="64-true")
    program.model.to(torch.float32)

    program.model.net.body.requires_grad_(False)
    before = values(program.model.net.body)
    yield life.FROZEN, program.fit(5)
    assert torch.equal(before["0.weight"], program.model.net.body[0].weight)
    program.model.net.body.requires_grad_(True)
    yield life.UNFROZEN, program.fit(5)
    assert not torch.equal(before["0.weight"], program.model.net.body[0].weight)

    program.model.configure_callbacks = lambda: Adds(begin=2)
    yield life.ADDED, program.fit(5)
    assert len(program.trainer.optimizers[0].param_groups) == 2


class Adds(lightning.Callback):
    """Adds parameters while the training runs, as BaseFinetuning does."""

    def __init__(self, begin: int) -> None:
        self.begin = begin

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        if trainer.global_step == self.begin and pl_module.net.added is None:
            more = [*pl_module.net.add().parameters()]
            trainer.optimizers[0].add_param_group({"params": more})


@pytest.mark.parametrize("fresh", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_life(fresh: bool, tmp_path: Path) -> None:
    path = life.settings(tmp_path, train_step=CONFIG)
    stages = life.assert_equal_lives(
        program_life(None, tmp_path, fresh), program_life(path, tmp_path, fresh)
    )
    assert tuple(stages) == (life.BEGUN, *life.STAGES)


class Adversaries(lightning.LightningModule):
    """Two models, each trained through the other, by hand."""

    automatic_optimization = False

    def __init__(self) -> None:
        super().__init__()
        self.net, self.other = Net(), Net()
        with torch.no_grad():
            for p in self.other.parameters():
                p.mul_(0.9)

    def training_step(self, given: Any, _: int) -> None:
        x, labels = given
        for model, optimizer in zip(
            (self.net, self.other), self.optimizers(), strict=True
        ):
            loss = loss_of(self.net(x) - self.other(x), labels)
            optimizer.zero_grad()
            self.manual_backward(loss if model is self.net else -loss)
            self.clip_gradients(
                optimizer, gradient_clip_val=CLIP, gradient_clip_algorithm="norm"
            )
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return [
            torch.optim.AdamW(each.parameters(), **life.ADAM)
            for each in (self.net, self.other)
        ]


def test_two_models_have_a_callback_each(tmp_path: Path) -> None:
    path, lives = life.settings(tmp_path, train_step=CONFIG), []
    for names in ((), ("net", "other")):
        model = Adversaries()
        trainer = trainer_of(None, 2 * STEPS)
        trainer.accumulate_grad_batches, trainer.gradient_clip_val = 1, None
        trainer.callbacks += [TunedCallback(path, module=name) for name in names]
        trainer.fit(model, loader(0, STEPS))
        for each, optimizer in zip(
            (model.net, model.other), trainer.optimizers, strict=True
        ):
            assert bool(optimizer.param_groups[0]["fused"]) is bool(names)
            assert (each.uncompiled == 0) is bool(names)
        lives.append(values(model))
    torch.testing.assert_close(lives[1], lives[0], rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_a_thread_beside(tmp_path: Path) -> None:
    path, lives = life.settings(tmp_path, train_step=CONFIG), []
    for settings in (None, path):
        program = Program(settings)
        with life.thread_beside(program.model.net):
            lives.append(program.fit())
    torch.testing.assert_close(lives[1], lives[0], rtol=1e-3, atol=1e-5)
