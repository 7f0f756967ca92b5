"""The callbacks of Lightning and Transformers, in real trainings of two steps."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_tuned import AOT, graphs, settings

from autocompile.errors import UsageError
from autocompile.settings.config import EAGER, CompileConfig
from autocompile.settings.tuned import Tuned, TunedSet

pytest.importorskip("pytorch_lightning")
pytest.importorskip("transformers")
import pytorch_lightning as lightning
import transformers

from autocompile.lightning import TunedCallback as OfLightning
from autocompile.transformers import TunedCallback as OfTransformers

pytestmark = pytest.mark.usefixtures("_dynamo_as_it_was", "_on_the_cpu")

STEP = CompileConfig("aot_eager", optimizer="for_loop")
APPLIED = "aot_eager; optimizer step: aot_eager · for_loop optimizer"


@pytest.fixture
def _on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(logging.getLogger("pytorch_lightning"), "propagate", True)


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    """A file of settings that compile both the forward pass and the optimizer step."""
    path = tmp_path / "tuned.json"
    path.write_text(
        TunedSet.read(settings(forward={4: AOT}, optimizer_step={None: STEP})).to_json()
    )
    return path


def steps_of(optimizer: Any) -> int:
    """How often an optimizer's compiled step has run."""
    return int(vars(optimizer)["_autocompile_step"].compiled.calls)


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


def fitted(
    model: Any,
    *callbacks: Any,
    steps: int = 2,
    precision: Any = "32-true",
    gradient_clip_val: float | None = None,
    **asked: Any,
) -> Any:
    """Lightning's Trainer after so many steps."""
    names = ("logger", "checkpointing", "progress_bar", "model_summary")
    silent = {name if name == "logger" else f"enable_{name}": False for name in names}
    more: dict[str, Any] = {"accelerator": "cpu", "num_sanity_val_steps": 0, **silent}
    more |= {"precision": precision, "gradient_clip_val": gradient_clip_val}
    trainer = lightning.Trainer(max_steps=steps, callbacks=list(callbacks), **more)
    torch.manual_seed(0)
    data = torch.utils.data.DataLoader(torch.randn(16, 8), batch_size=4)
    trainer.fit(model, data, **asked)
    return trainer


def trained(*callbacks: Any, **asked: Any) -> Any:
    """The Trainer of Transformers after two steps on a tiny GPT-2 without dropout."""
    more: dict[str, Any] = {
        "save_strategy": "no",
        "disable_tqdm": True,
        "report_to": [],
        **asked,
    }
    arguments = transformers.TrainingArguments(
        "out", max_steps=2, per_device_train_batch_size=4, use_cpu=True, seed=0, **more
    )
    words = torch.arange(8) % 11
    data = [{"input_ids": words, "labels": words}] * 8
    trainer = transformers.Trainer(
        gpt2(), arguments, train_dataset=data, callbacks=[*callbacks]
    )
    trainer.train()
    return trainer


def gpt2() -> Any:
    sizes = {"vocab_size": 11, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 1}
    drop = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**sizes, **drop, **ends)
    )


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if APPLIED in r.getMessage()]


def test_lightning_fits_compiled_and_checkpoints_keep_their_keys(
    tuned: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain, model = Lit(), Lit()
    fitted(plain)
    before = graphs()
    with caplog.at_level(logging.INFO):
        trainer = fitted(model, OfLightning(tuned, module="net"))
    assert graphs() - before >= 2  # the model's and the step's
    assert model.net._compiled_call_impl.calls == 2
    assert steps_of(trainer.optimizers[0]) == 2
    torch.testing.assert_close(model.state_dict(), plain.state_dict())
    assert said(caplog) == [f"autocompile: Sequential: {APPLIED}"]

    path = str(tmp_path / "one.ckpt")
    trainer.save_checkpoint(path)
    assert list(torch.load(path, weights_only=False)["state_dict"]) == list(
        plain.state_dict()
    )
    trainer = fitted(Lit(), OfLightning(tuned, module="net"), steps=3, ckpt_path=path)
    assert steps_of(trainer.optimizers[0]) == 1
    assert trainer.optimizers[0].param_groups[0]["foreach"] is False


class ClipsInAHook(Lit):
    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        self.clip_gradients(
            optimizer, gradient_clip_val=0.01, gradient_clip_algorithm="norm"
        )


@pytest.mark.parametrize("kind", [Lit, ClipsInAHook])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_lightning_clips_gradients_of_a_fused_step(
    tmp_path: Path, precision: Any, kind: type[Lit]
) -> None:
    weights = []
    for config in (EAGER, CompileConfig("eager", optimizer="fused")):
        path = tmp_path / "tuned.json"
        found = settings(train_step={4: config})
        path.write_text(TunedSet.read(found).to_json())
        model = kind()
        callback = OfLightning(path, module="net")
        clip = 0.01 if kind is Lit else None
        trainer = fitted(
            model, callback, precision=precision, gradient_clip_val=clip, steps=4
        )
        assert bool(trainer.optimizers[0].param_groups[0]["fused"]) is (config != EAGER)
        weights.append([p.detach().clone() for p in model.parameters()])
    torch.testing.assert_close(weights[1], weights[0])


def test_lightning_refuses_what_it_cannot_use(tuned: Path, tmp_path: Path) -> None:
    frozen = settings(forward={4: CompileConfig(freezing=True)})
    step_only = settings(optimizer_step={None: STEP})
    for source, module, words, hint in (
        (
            tuned,
            "",
            "does not call Lit",
            "module=",
        ),  # the training step calls something else
        (frozen, "net", "no gradients", "tune"),
        (step_only, "net", "these are of optimizer_step", "train_step"),
        (frozen, "nett", "nett", "module="),
    ):
        with pytest.raises(UsageError, match=words) as caught:
            fitted(Lit(), OfLightning(source, module=module))
        assert hint in str(caught.value.hint)
    with pytest.raises(UsageError, match="cannot read"):
        OfLightning(tmp_path / "other.json")


def test_transformers_train_compiled_and_checkpoints_keep_their_keys(
    tuned: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain, before = trained(), graphs()
    with caplog.at_level(logging.INFO, logger="autocompile"):
        trainer = trained(OfTransformers(tuned))
    assert graphs() - before >= 2
    assert trainer.model._compiled_call_impl.calls == 2
    assert steps_of(trainer.optimizer.optimizer) == 2
    torch.testing.assert_close(trainer.model.state_dict(), plain.model.state_dict())
    assert said(caplog) == [f"GPT2LMHeadModel: {APPLIED}"]

    trainer.save_model("saved")
    _, found = transformers.GPT2LMHeadModel.from_pretrained(
        "saved", output_loading_info=True
    )
    assert not any(found.values()), found


def test_transformers_take_the_settings_of_the_nearest_batch_size() -> None:
    both = settings(forward={4: EAGER, 64: AOT})
    found = Tuned(both.phases, both.fingerprint)
    assert trained(OfTransformers(found)).model._compiled_call_impl is None


def test_transformers_refuse_several_gpus_and_torch_compile_beside_it(
    tuned: Path,
) -> None:
    arguments = SimpleNamespace(n_gpu=2, per_device_train_batch_size=4)
    with pytest.raises(UsageError, match="several GPUs") as caught:
        OfTransformers(tuned).on_train_begin(
            arguments, None, None, model=None, optimizer=None
        )
    assert "torchrun" in str(caught.value.hint)
    too = {"torch_compile": True, "torch_compile_backend": "aot_eager"}
    with pytest.raises(UsageError, match="does not call GPT2LMHeadModel") as caught:
        trained(OfTransformers(tuned), **too)
    assert "torch_compile=False" in str(caught.value.hint)
