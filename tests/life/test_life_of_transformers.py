"""The life of a program with the Trainer of Transformers and our callback."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import life
import pytest
import torch
from life import BATCH, CLIP, CONFIG, STEPS, Life, Net, Values, batch, loss_of, values

pytest.importorskip("transformers")
import transformers
from transformers import PretrainedConfig, PreTrainedModel

from autocompile.transformers import TunedCallback

pytestmark = [
    pytest.mark.usefixtures("_dynamo_as_it_was", "_one_thread", "work"),
    pytest.mark.filterwarnings("ignore"),  # the Trainer's, of memory it cannot pin
]


class Config(PretrainedConfig):
    model_type = "life"


class Classifier(PreTrainedModel):
    """As the library's own: the loss is computed in the forward pass."""

    config_class = Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.net = Net()
        self.post_init()

    def _init_weights(self, module: Any) -> None:
        """Net has done it."""

    def forward(
        self, x: torch.Tensor, labels: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        outputs = self.net(x.to(self.dtype))
        found = {} if labels is None else {"loss": loss_of(outputs, labels)}
        return {**found, "logits": outputs}


class Examples(torch.utils.data.Dataset[Any]):
    def __init__(self, begin: int, count: int) -> None:
        batches = [batch(begin + number) for number in range(-(-count // BATCH))]
        pairs = [pair for x, labels in batches for pair in zip(x, labels, strict=True)]
        self.pairs = pairs[:count]

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, place: int) -> Any:
        x, label = self.pairs[place]
        return {"x": x, "labels": label}


class InOrder(transformers.Trainer):
    """Takes examples in their order."""

    def _get_train_sampler(self, *_: Any) -> Any:
        return None


class Program:
    """A model and the Trainer of its last training."""

    def __init__(self, settings: Path | None, folder: Path) -> None:
        self.settings, self.folder = settings, folder
        self.model, self.number = Classifier(Config()), 0

    def trainer_of(self, steps: int, begin: int, **given: Any) -> Any:
        arguments = transformers.TrainingArguments(
            str(self.folder / f"out-{bool(self.settings)}"),
            max_steps=steps,
            per_device_train_batch_size=BATCH,
            per_device_eval_batch_size=BATCH,
            gradient_accumulation_steps=life.ACCUMULATED,
            max_grad_norm=CLIP,
            learning_rate=life.ADAM["lr"],
            adam_epsilon=life.ADAM["eps"],
            optim="adamw_torch",
            lr_scheduler_type="constant",
            average_tokens_across_devices=False,
            use_cpu=True,
            save_strategy="no",
            disable_tqdm=True,
            report_to=[],
            **given,
        )
        count = (steps * life.ACCUMULATED - begin) * BATCH
        callbacks = [TunedCallback(self.settings)] if self.settings else []
        return InOrder(
            self.model,
            arguments,
            train_dataset=Examples(self.number, count),
            eval_dataset=Examples(0, sum(life.EVALUATION)),
            callbacks=callbacks,
        )

    def train(self, steps: int = STEPS, checkpoint: Path | None = None) -> Values:
        before, done = self.model.net.uncompiled, 0
        if checkpoint:
            state = transformers.TrainerState.load_from_json(
                str(checkpoint / "trainer_state.json")
            )
            done = state.global_step
        # Of a checkpoint the Trainer passes over the batches before it.
        self.number -= done * life.ACCUMULATED
        self.trainer = self.trainer_of(done + steps, 0)
        self.number += (done + steps) * life.ACCUMULATED
        self.trainer.train(resume_from_checkpoint=str(checkpoint or "") or None)
        if self.settings:
            assert self.model.net.uncompiled == before
            weight = self.model.net.body[0].weight
            assert weight.is_contiguous(memory_format=torch.channels_last)
            groups = self.trainer.optimizer.optimizer.param_groups
            assert all(group["fused"] for group in groups)
        return values(self.model.net)

    def save(self) -> Path:
        """The Trainer's own checkpoint."""
        self.trainer._save_checkpoint(self.trainer.model, trial=None)
        step = self.trainer.state.global_step
        return Path(self.trainer.args.output_dir) / f"checkpoint-{step}"


def go_on(settings: str, saved: str, folder: str, number: str) -> None:
    program = Program(Path(settings) if settings else None, Path(folder))
    program.number = int(number)
    program.train(checkpoint=Path(saved))
    program.save()


def program_life(settings: Path | None, folder: Path, fresh: bool) -> Life:
    program = Program(settings, folder)
    yield life.BEGUN, values(program.model.net)
    yield life.TRAINED, program.train()

    saved = program.save()
    flags = torch.load(saved / "optimizer.pt")["param_groups"][0]
    assert not flags["fused"]
    kept = Classifier.from_pretrained(saved)
    yield life.SAVED, values(kept.net)

    texts = str(settings or ""), str(saved), str(folder), str(program.number)
    if settings and fresh:
        life.in_fresh_process(go_on, *texts)
    else:
        go_on(*texts)
    after = saved.parent / f"checkpoint-{2 * STEPS}"
    number, program = program.number, Program(settings, folder)
    program.number = number + STEPS * life.ACCUMULATED
    program.model = Classifier.from_pretrained(after)
    yield life.RESUMED, values(program.model.net)

    found = program.trainer_of(1, 0).predict(Examples(0, sum(life.EVALUATION)))
    yield life.EVALUATED, {"outputs": torch.from_numpy(found.predictions)}
    yield life.GONE_ON, program.train(checkpoint=after)
    before = program.model.net.uncompiled
    program.trainer.predict(Examples(0, sum(life.EVALUATION)))
    assert program.model.net.uncompiled == before or not settings

    saved = program.save()
    untuned = Program(None, folder / "untuned")
    untuned.number = program.number
    yield life.UNTUNED, untuned.train(checkpoint=saved)

    for stage, way in (
        (life.DEEPCOPIED, copy.deepcopy),
        (life.PICKLED, lambda made: pickle.loads(pickle.dumps(made))),
    ):
        weights = values(program.model.net)
        copied = copy.copy(program)
        copied.model = way(program.model)
        assert copied.model._compiled_call_impl is None  # until the next training
        yield stage, copied.train(5)
        torch.testing.assert_close(values(program.model.net), weights, rtol=0, atol=0)

    program.model.to(torch.float64)
    yield life.CONVERTED, program.train(5)
    program.model.to(torch.float32)

    body = program.model.net.body
    body.requires_grad_(False)
    weights = values(body)
    yield life.FROZEN, program.train(5)
    assert torch.equal(weights["0.weight"], body[0].weight)
    body.requires_grad_(True)
    yield life.UNFROZEN, program.train(5)
    assert not torch.equal(weights["0.weight"], body[0].weight)

    # Before a training: the Trainer's schedule takes no group that is added in one.
    added = program.model.net.add()
    weights = values(added)
    yield life.ADDED, program.train(5)
    assert not torch.equal(weights["weight"], added.weight)


@pytest.mark.parametrize("fresh", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_life(fresh: bool, tmp_path: Path) -> None:
    path = life.settings(tmp_path, train_step=CONFIG)
    stages = life.assert_equal_lives(
        program_life(None, tmp_path, fresh), program_life(path, tmp_path, fresh)
    )
    assert tuple(stages) == (life.BEGUN, *life.STAGES)


@pytest.mark.slow
def test_a_thread_beside(tmp_path: Path) -> None:
    path, lives = life.settings(tmp_path, train_step=CONFIG), []
    for settings in (None, path):
        program = Program(settings, tmp_path)
        with life.thread_beside(program.model.net):
            lives.append(program.train())
    torch.testing.assert_close(lives[1], lives[0], rtol=1e-3, atol=1e-5)


def test_two_models_have_a_trainer_each(tmp_path: Path) -> None:
    """The second is compiled by itself, and the first goes on as it was."""
    path, lives = life.settings(tmp_path, train_step=CONFIG), []
    for settings in (None, path):
        first, second = (Program(settings, tmp_path / name) for name in ("a", "b"))
        second.number = 7
        for program in (first, second, first):
            program.train(3)
        both = {"first": first, "second": second}
        lives.append(
            {
                f"{k}.{n}": x
                for k, p in both.items()
                for n, x in values(p.model.net).items()
            }
        )
    torch.testing.assert_close(lives[1], lives[0], rtol=1e-3, atol=1e-5)
