"""Models of installed libraries: made from a name, fed, trained, and what is said where not.

timm and torchvision are small packages that the tests write, since PyPI's torchvision does not fit
every build of torch.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import Try

from autocompile.cluster.tune_all import shipment_of
from autocompile.errors import TargetError
from autocompile.store.record import Outcome
from autocompile.store.recorded_calls import RecordedCalls
from autocompile.store.runs import new_folder
from autocompile.store.sources import sources_of
from autocompile.store.targets import is_same_target, library_model, target_spec
from autocompile.trial.model.load import build, import_target
from autocompile.trial.model.sides import make_side
from autocompile.trial.model.target import Target, seed_everything

BERT = "hidden_size=16&num_attention_heads=2&intermediate_size=32&vocab_size=50&layers=1&length=8"
SEQ2SEQ = (
    "layers=1&decoder_layers=1&d_model=16&encoder_attention_heads=2&decoder_attention_heads=2"
    "&encoder_ffn_dim=32&decoder_ffn_dim=32&vocab_size=50&length=8&pad_token_id=0"
)
PARTS = "&".join(
    f"{part}.{key}"
    for part in ("text_config", "vision_config")
    for key in ("hidden_size=16", "num_attention_heads=2", "intermediate_size=32")
)
UNET = (
    "block_out_channels=32,64&layers_per_block=1&size=16&down_block_types=DownBlock2D,"
)

TIMM = """
import torch
__version__ = "1.0"
def list_models(): return ["tiny_net", "tiny_vit", "offline"]
def create_model(name, pretrained, num_classes=5):
    assert not pretrained
    if name == "offline":
        raise OSError("We couldn't connect to 'https://huggingface.co'")
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 12, num_classes))
    model.default_cfg = {"input_size": (3, 8, 12)}
    return model
"""
TORCHVISION = """
from types import SimpleNamespace as Space
import torch
NAMES = {"tiny": "models.tiny", "mask_rcnn": "models.detection.rcnn", "r3d": "models.video.resnet"}
def list_models(): return sorted([*NAMES, "plain"])
def get_model_builder(name):
    def builder(weights=None, weights_backbone="downloaded"): pass
    builder.__module__ = f"torchvision.{NAMES.get(name, 'models.plain')}"
    return builder
def get_model(name, weights, weights_backbone):
    assert weights is None and weights_backbone is None
    pool = torch.nn.AdaptiveAvgPool2d(2)
    return torch.nn.Sequential(pool, torch.nn.Flatten(), torch.nn.Linear(12, 4))
def get_model_weights(name):
    if name == "plain":
        raise ValueError("no weights")
    return Space(DEFAULT=Space(transforms=lambda: Space(crop_size=[12])))
"""
WRAPPING = """
try:
    import torchvision
except Exception as error:
    raise ModuleNotFoundError("Could not import module") from error
"""
BROKEN = 'raise RuntimeError("operator torchvision::nms does not exist")\n'


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "argv", sys.argv)
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.setenv(name, "0")
    if hub := sys.modules.get("huggingface_hub.constants"):
        monkeypatch.setattr(hub, "HF_HUB_OFFLINE", False)
    yield
    for name in list(sys.modules):
        if name.split(".")[0] in ("timm", "torchvision"):
            del sys.modules[name]


@pytest.fixture
def packages(work: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is searched first for packages, with small ones in the place of two."""
    (work / "torchvision").mkdir()
    (work / "timm.py").write_text(TIMM)
    (work / "torchvision" / "__init__.py").write_text("__version__ = '0.1'\n")
    (work / "torchvision" / "models.py").write_text(TORCHVISION)
    monkeypatch.syspath_prepend(str(work))
    return work


def load(spec: str) -> Target:
    seed_everything(0)
    return build(spec, import_target(spec))


def error_of(spec: str) -> str:
    with pytest.raises(TargetError) as caught:
        load(spec)
    assert caught.value.exit_code == 2
    return caught.value.text()


def run(target: Target, phase: str) -> tuple[Any, Any]:
    """The inputs of a batch of two, and the result of a call in eager mode."""
    seed_everything(1)
    inputs = target.inputs(phase, 2)
    return inputs, make_side(target, phase, inputs).run()


def shapes(inputs: Any) -> dict[str, tuple[int, ...]]:
    return {
        name: tuple(x.shape)
        for name, x in inputs.items()
        if isinstance(x, torch.Tensor)
    }


# The spec ----------------------------------------------------------------------------------------


def test_a_spec_is_a_library_a_model_and_options(work: Path) -> None:
    spec = "transformers:BertModel?layers=4&length=64"
    assert library_model(spec) == (
        "transformers",
        "BertModel",
        {"layers": "4", "length": "64"},
    )
    assert library_model("timm:vit.augreg") == ("timm", "vit.augreg", {})
    assert library_model("model.py:net") is library_model("timm") is None
    assert is_same_target(spec, "transformers:BertModel?length=64&layers=4")
    assert not is_same_target(spec, "transformers:BertModel?length=64")
    assert target_spec(spec) == spec
    assert sources_of(spec) is None and shipment_of(spec) == ({}, str(work), spec)
    assert new_folder(spec).path.name == "BertModel-0001"
    assert (
        new_folder("timm:vit_small_patch16_224").path.name
        == "vit_small_patch16_224-0001"
    )


# Transformers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "fed", "labels"),
    [
        (f"BertForMaskedLM?{BERT}", {"input_ids": (2, 8)}, {"labels": (2, 8)}),
        (
            f"BertForSequenceClassification?{BERT}",
            {"input_ids": (2, 8)},
            {"labels": (2,)},
        ),
        (
            f"BertForQuestionAnswering?{BERT}",
            {"input_ids": (2, 8)},
            {"start_positions": (2,), "end_positions": (2,)},
        ),
        (f"BertForMultipleChoice?{BERT}", {"input_ids": (2, 2, 8)}, {"labels": (2,)}),
        (
            "GPT2LMHeadModel?layers=1&n_embd=16&n_head=2&vocab_size=50",
            {"input_ids": (2, 128)},
            {"labels": (2, 128)},
        ),
        (
            f"BartForConditionalGeneration?{SEQ2SEQ}",
            {"input_ids": (2, 8), "decoder_input_ids": (2, 8)},
            {"labels": (2, 8)},
        ),
        (
            f"WhisperForConditionalGeneration?{SEQ2SEQ}&max_source_positions=20",
            {"input_features": (2, 80, 40), "decoder_input_ids": (2, 8)},
            {"labels": (2, 8)},
        ),
        (
            "ConvNextForImageClassification?depths=1,1,1,1&hidden_sizes=8,8,8,8&image_size=32",
            {"pixel_values": (2, 3, 32, 32)},
            {"labels": (2,)},
        ),
        (
            f"CLIPModel?layers=1&{PARTS}&vision_config.image_size=16&vision_config.patch_size=8",
            {"input_ids": (2, 77), "pixel_values": (2, 3, 16, 16)},
            {},
        ),
    ],
    ids=lambda x: x.partition("?")[0] if isinstance(x, str) else "",
)
def test_a_model_of_transformers_is_fed_and_gives_its_own_loss(
    model: str, fed: dict[str, Any], labels: dict[str, Any]
) -> None:
    pytest.importorskip("transformers")
    target = load(f"transformers:{model}")
    assert shapes(run(target, "forward")[0]) == fed
    inputs, loss = run(target, "train_step")
    assert shapes(inputs) == fed | labels
    output = target.fresh_model("train_step").eval()(**inputs)
    assert target.loss(output, inputs) is output.loss
    assert loss > 0 and target.choices["loss"].startswith("the model's own")
    assert target.kind == "transformers"


@pytest.mark.parametrize(
    "model",
    [
        "BartModel?layers=2&d_model=16&vocab_size=50&encoder_attention_heads=2"
        "&decoder_attention_heads=2",
        "T5Model?layers=2&d_model=16&vocab_size=50&d_kv=8&num_heads=2",
        "ProphetNetModel?layers=2&hidden_size=16&vocab_size=50&num_encoder_attention_heads=2"
        "&num_decoder_attention_heads=2",
    ],
    ids=lambda x: x.partition("?")[0],
)
def test_layers_are_those_of_the_decoder_too(model: str) -> None:
    pytest.importorskip("transformers")
    names = [name for name, _ in load(f"transformers:{model}").model.named_modules()]
    for part in ("encoder", "decoder"):
        blocks = {n for n in names if re.fullmatch(rf"{part}\.(layers|block)\.\d+", n)}
        assert len(blocks) == 2


def test_a_type_of_models_and_one_without_a_loss() -> None:
    transformers = pytest.importorskip("transformers")
    target = load(f"transformers:bert?{BERT}&hidden_dropout_prob=0.25&hidden_act=relu")
    assert type(target.model).__name__ == "BertModel" and "loss" not in target.choices
    config: Any = target.model.config
    assert (config.num_hidden_layers, config.use_cache) == (1, False)
    assert (config.hidden_dropout_prob, config.hidden_act) == (0.25, "relu")
    assert shapes(target.inputs("train_step", 3)) == {"input_ids": (3, 8)}
    assert run(target, "train_step")[1].dim() == 0
    assert (
        target.choices["model"]
        == f"transformers {transformers.__version__}, with random weights"
    )
    assert "input_ids [8]" in target.choices["inputs"]


def test_calls_of_a_file_take_the_place_of_inputs() -> None:
    pytest.importorskip("transformers")
    tensor = {"shape": [2, 5], "dtype": "int64", "low": 0, "high": 49}
    calls = RecordedCalls(
        "BertForMaskedLM", ({"args": [{"tensor": tensor}], "kwargs": {}},), (0,)
    )
    spec = f"transformers:BertForMaskedLM?{BERT}"
    target = build(spec, import_target(spec), calls)
    for phase in ("forward", "train_step"):
        (call,) = target.inputs(phase, None)  # by name, as the library's own inputs
        assert call["input_ids"].shape == (2, 5)


def test_a_library_is_kept_offline() -> None:
    pytest.importorskip("transformers")
    load(f"transformers:BertModel?{BERT}")
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    assert sys.modules["huggingface_hub.constants"].HF_HUB_OFFLINE is True


@pytest.mark.parametrize("phase", ["forward", "train_step"])
def test_a_real_trial_of_a_model_of_transformers(try_it: Try, phase: str) -> None:
    pytest.importorskip("transformers")
    result = try_it(f"transformers:BertModel?{BERT}", phase, batch_size=2)
    assert result["outcome"] == "ok", result["message"]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (
            "BertModell",
            ["no model 'BertModell'", "BertModel,", "check transformers:BertModel"],
        ),
        ("BertConfig", ["no model 'BertConfig'"]),
        ("", ["no model ''", "check transformers:"]),
        (
            "BertModel?hiden_size=4",
            [
                "BertConfig has no attribute 'hiden_size'",
                "hidden_size",
                "BertModel?hidden_size=4",
            ],
        ),
        (
            "SwinModel?layers=3",
            ["has its layers in stages: 2,2,6,2", "?depths=1,1,1,1"],
        ),
        ("clap?layers=1", ["ClapConfig computes num_hidden_layers itself: 16, not 1"]),
        (
            "Wav2Vec2Model?num_feat_extract_layers=3",
            [
                "StrictDataclassClassValidationError: Class validation error",
                "ValueError: ",
            ],
        ),
        (
            "BertModel?length=4096",
            ["takes 512 tokens at most, not 4096", "?length=512"],
        ),
        ("BertModel?length=long", ["cannot be made from its name", "TypeError"]),
        ("BertModel?hidden_size=long", ["cannot be made from its name", "hidden_size"]),
        ("BertModel?_attn_implementation=a/kernel", ["is about files or weights"]),
        ("CLIPModel?text_config._name_or_path=x", ["is about files or weights"]),
        (
            "PerceiverModel",
            [
                "its main input is inputs",
                "def get_model(): return transformers.PerceiverModel(",
            ],
        ),
        (
            "perceiver",
            ['AutoConfig.for_model("perceiver")', "def get_inputs(batch_size):"],
        ),
    ],
)
def test_what_is_wrong_with_a_model_of_transformers(
    model: str, words: list[str]
) -> None:
    pytest.importorskip("transformers")
    text = error_of(f"transformers:{model}")
    assert all(each in text for each in words), text


@pytest.mark.parametrize(
    ("spec", "seen"),
    [
        (
            "transformers:GPT2ForSequenceClassification?layers=1&n_embd=16&n_head=2&vocab_size=50",
            "Cannot handle batch sizes > 1",
        ),
        (
            "diffusers:UVit2DModel?num_hidden_layers=1&hidden_size=64",
            "required positional arguments: 'input_ids'",
        ),
    ],
)
def test_a_model_that_does_not_run_with_what_it_is_given_needs_a_file(
    try_it: Try, spec: str, seen: str
) -> None:
    pytest.importorskip(spec.partition(":")[0])
    result = try_it(spec, kind="probe", toolchain=None)
    assert result["outcome"] == Outcome.RUNTIME_ERROR
    assert "does not run with the inputs" in result["message"]
    details = "\n".join(result["explained"]["details"])
    assert seen in details and "def get_model()" in details


# Diffusers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "fed"),
    [
        (
            f"UNet2DModel?{UNET}AttnDownBlock2D&up_block_types=AttnUpBlock2D,UpBlock2D",
            {"sample": (2, 3, 16, 16), "timestep": (2,)},
        ),
        (
            f"ControlNetModel?{UNET}CrossAttnDownBlock2D&cross_attention_dim=16",
            {
                "sample": (2, 4, 16, 16),
                "timestep": (2,),
                "encoder_hidden_states": (2, 77, 16),
                "controlnet_cond": (2, 3, 128, 128),
            },
        ),
        (
            "DiTTransformer2DModel?num_layers=1&num_attention_heads=2&attention_head_dim=8&size=8",
            {"hidden_states": (2, 4, 8, 8), "timestep": (2,), "class_labels": (2,)},
        ),
        ("AutoencoderKL?block_out_channels=32&size=16", {"sample": (2, 3, 16, 16)}),
    ],
    ids=lambda x: x.partition("?")[0] if isinstance(x, str) else "",
)
def test_a_model_of_diffusers_is_fed_by_what_its_forward_takes(
    model: str, fed: dict[str, Any]
) -> None:
    pytest.importorskip("diffusers")
    target = load(f"diffusers:{model}")
    inputs, _ = run(target, "forward")
    assert shapes(inputs) == fed
    assert run(target, "train_step")[1].dim() == 0


def test_what_is_wrong_with_a_model_of_diffusers() -> None:
    pytest.importorskip("diffusers")
    assert "diffusers:UNet2DModel" in error_of("diffusers:Unet2DModl")
    assert "nearest" in error_of("diffusers:Unet2DModl")
    text = error_of("diffusers:AutoencoderKL?block_out_chanels=32&size=16")
    assert "'autocompile check diffusers:AutoencoderKL" not in text
    assert "AutoencoderKL has no argument 'block_out_chanels'" in text
    assert "?block_out_channels=32&size=16" in text


# timm and torchvision ----------------------------------------------------------------------------


def test_a_model_of_timm(packages: Path) -> None:
    target = load("timm:tiny_net.weights_tag?num_classes=7")
    (image,), output = run(target, "forward")
    assert image.shape == (2, 3, 8, 12) and output.shape == (2, 7)
    assert run(target, "train_step")[1].dim() == 0
    assert (target.kind, target.choices["model"]) == (
        "timm",
        "timm 1.0, with random weights",
    )
    text = error_of("timm:tinynet")
    assert "the nearest of 3 are: tiny_net" in text and "check timm:tiny_net" in text
    text = error_of("timm:offline")
    assert (
        "without weights and without a network" in text and "couldn't connect" in text
    )
    assert 'def get_model(): return timm.create_model("offline")' in text
    assert "unexpected keyword argument 'wide'" in error_of("timm:tiny_net?wide=3")
    assert "is about files or weights" in error_of(
        "timm:tiny_net?checkpoint_path=a.pth"
    )


def test_a_model_of_torchvision(packages: Path) -> None:
    (image,), output = run(load("torchvision:tiny"), "forward")
    assert image.shape == (2, 3, 12, 12) and output.shape == (2, 4)
    assert run(load("torchvision:plain"), "forward")[0][0].shape == (2, 3, 224, 224)
    assert load("torchvision:r3d").inputs("forward", 1)[0].shape == (1, 3, 16, 12, 12)
    text = error_of("torchvision:mask_rcnn")
    assert (
        "lists of images, and in training targets" in text and "def get_inputs" in text
    )
    assert "check torchvision:tiny" in error_of("torchvision:tyny")


def test_a_real_trial_of_a_model_of_timm(packages: Path, try_it: Try) -> None:
    result = try_it("timm:tiny_net", "train_step", batch_size=2)
    assert result["outcome"] == "ok", result["message"]


def test_a_library_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("timm", "torchvision", "diffusers", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it was not installed
    assert "pip install timm" in error_of("timm:resnet50")
    assert "pip install diffusers" in error_of("diffusers:UNet2DModel")
    assert "pip install 'transformers>=4.56'" in error_of("transformers:BertModel")


def test_torchvision_of_another_index(
    packages: Path, monkeypatch: pytest.MonkeyPatch, try_it: Try
) -> None:
    monkeypatch.setattr(torch, "__version__", "2.13.0+cpu")
    (packages / "torchvision" / "__init__.py").write_text(BROKEN)
    (packages / "timm.py").write_text(WRAPPING)
    for spec in ("torchvision:tiny", "timm:tiny_net"):
        text = error_of(spec)
        assert "nms does not exist" in text and "from the same index" in text
        assert (
            "pip install torch torchvision --index-url https://download.pytorch.org/whl/cpu"
            in text
        )
        result = try_it(spec, kind="probe", toolchain=None)
        assert result["outcome"] == Outcome.IMPORT_ERROR
        assert result["explained"]["what"].endswith("does not load")
