"""The callbacks of Lightning and Transformers, in real trainings of two steps."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_tuned import AOT, graphs, settings

from autocompile.errors import UsageError
from autocompile.settings.config import CompileConfig
from autocompile.settings.tuned import Tuned

lightning = pytest.importorskip("pytorch_lightning")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("_dynamo_as_it_was", "_on_the_cpu")

STEP = CompileConfig("aot_eager", optimizer="for_loop")


@pytest.fixture
def _on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    """A file of settings that compile both the forward pass and the optimizer step."""
    path = tmp_path / "tuned.json"
    path.write_text(settings(forward={4: AOT}, optimizer_step={None: STEP}).to_json())
    return path


def steps_of(optimizer: Any) -> int:
    """How often an optimizer's compiled step has run."""
    return int(vars(optimizer)["_autocompile_step"].compiled.calls)


# Lightning -----------------------------------------------------------------------------------


class Lit(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        return self.net(batch).square().mean()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


def fitted(model: Any, *callbacks: Any, steps: int = 2, **asked: Any) -> Any:
    """The Trainer after so many steps."""
    trainer = lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
        num_sanity_val_steps=0,
    )
    torch.manual_seed(0)
    data = torch.utils.data.DataLoader(torch.randn(16, 8), batch_size=4)
    trainer.fit(model, data, **asked)
    return trainer


def test_lightning_fits_compiled_and_checkpoints_keep_their_keys(
    tuned: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from autocompile.lightning import TunedCallback

    monkeypatch.setattr(logging.getLogger("pytorch_lightning"), "propagate", True)
    plain, model = Lit(), Lit()
    fitted(plain)
    before = graphs()
    with caplog.at_level(logging.INFO):
        trainer = fitted(model, TunedCallback(tuned, module="net"))
    assert graphs() - before >= 2  # the model's and the step's
    assert model.net._compiled_call_impl.calls == 2
    assert steps_of(trainer.optimizers[0]) == 2
    torch.testing.assert_close(model.state_dict(), plain.state_dict())
    said = [r.getMessage() for r in caplog.records if "autocompile:" in r.getMessage()]
    assert said == [
        "autocompile: Sequential: aot_eager; optimizer step: aot_eager · for_loop optimizer"
    ]

    trainer.save_checkpoint(tmp_path / "one.ckpt")
    saved = torch.load(tmp_path / "one.ckpt", weights_only=False)["state_dict"]
    assert list(saved) == list(plain.state_dict())
    again = Lit()
    callback = TunedCallback(tuned, module="net")
    trainer = fitted(again, callback, steps=3, ckpt_path=str(tmp_path / "one.ckpt"))
    assert steps_of(trainer.optimizers[0]) == 1
    assert trainer.optimizers[0].param_groups[0]["foreach"] is False


def test_lightning_says_when_the_training_step_calls_something_else(tuned: Path) -> None:
    from autocompile.lightning import TunedCallback

    with pytest.raises(UsageError, match="does not call Lit") as caught:
        fitted(Lit(), TunedCallback(tuned))
    assert "module=" in str(caught.value.hint)


def test_lightning_refuses_what_cannot_train(tmp_path: Path) -> None:
    from autocompile.lightning import TunedCallback

    frozen = settings(forward={4: CompileConfig(freezing=True)})
    with pytest.raises(UsageError, match="no gradients"):
        fitted(Lit(), TunedCallback(frozen, module="net"))
    with pytest.raises(UsageError, match="no settings for forward"):
        fitted(Lit(), TunedCallback(settings(optimizer_step={None: STEP}), module="net"))
    with pytest.raises(UsageError, match="nett") as caught:
        fitted(Lit(), TunedCallback(frozen, module="nett"))
    assert "module=" in str(caught.value.hint)
    with pytest.raises(UsageError, match="cannot read"):
        TunedCallback(tmp_path / "other.json")


# Transformers --------------------------------------------------------------------------------


def trained(*callbacks: Any, made: Callable[[], Any], **asked: Any) -> Any:
    """The Trainer after two steps on a tiny GPT-2."""
    arguments = transformers.TrainingArguments(
        "out",
        max_steps=2,
        per_device_train_batch_size=4,
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
        report_to=[],
        seed=0,
        **asked,
    )
    words = torch.arange(8) % 11
    data = [{"input_ids": words, "labels": words}] * 8
    trainer = transformers.Trainer(made(), arguments, train_dataset=data, callbacks=list(callbacks))
    trainer.train()
    return trainer


@pytest.fixture(scope="module")
def gpt2() -> Callable[[], Any]:
    """Copies of one random GPT-2 without dropout."""
    sizes = {"vocab_size": 11, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 1}
    drop = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(**sizes, **drop, **ends)
    model = transformers.GPT2LMHeadModel(config)
    return lambda: copy.deepcopy(model)


def test_transformers_train_compiled_and_checkpoints_keep_their_keys(
    tuned: Path, gpt2: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    from autocompile.transformers import TunedCallback

    plain = trained(made=gpt2)
    before = graphs()
    with caplog.at_level(logging.INFO, logger="autocompile"):
        trainer = trained(TunedCallback(tuned), made=gpt2)
    assert graphs() - before >= 2
    assert trainer.model._compiled_call_impl.calls == 2
    assert steps_of(trainer.optimizer.optimizer) == 2
    torch.testing.assert_close(trainer.model.state_dict(), plain.model.state_dict())
    said = [r.getMessage() for r in caplog.records if r.name == "autocompile"]
    assert said == ["GPT2LMHeadModel: aot_eager; optimizer step: aot_eager · for_loop optimizer"]

    trainer.save_model("saved")
    _, found = transformers.GPT2LMHeadModel.from_pretrained("saved", output_loading_info=True)
    assert not any(found.values()), found


def test_transformers_take_the_settings_of_the_nearest_batch_size(
    gpt2: Callable[[], Any],
) -> None:
    from autocompile.transformers import TunedCallback

    both = settings(forward={4: CompileConfig("eager"), 64: AOT})
    found = Tuned(both.phases, both.fingerprint)
    assert trained(TunedCallback(found), made=gpt2).model._compiled_call_impl is None


def test_transformers_refuse_a_model_that_is_copied_to_several_gpus(tuned: Path) -> None:
    from autocompile.transformers import TunedCallback

    arguments = SimpleNamespace(n_gpu=2, per_device_train_batch_size=4)
    with pytest.raises(UsageError, match="several GPUs") as caught:
        TunedCallback(tuned).on_train_begin(arguments, None, None, model=None, optimizer=None)
    assert "torchrun" in str(caught.value.hint)


def test_transformers_say_when_torch_compile_is_on_too(
    tuned: Path, gpt2: Callable[[], Any]
) -> None:
    from autocompile.transformers import TunedCallback

    with pytest.raises(UsageError, match="does not call GPT2LMHeadModel") as caught:
        trained(
            TunedCallback(tuned), made=gpt2, torch_compile=True, torch_compile_backend="aot_eager"
        )
    assert "torch_compile=False" in str(caught.value.hint)
