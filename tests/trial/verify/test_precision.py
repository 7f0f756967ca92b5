"""What changes numbers or drops checks: only where it is asked for, and then said and bounded."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TARGETS
from in_process import Try

from autocompile.cli import options
from autocompile.errors import UsageError
from autocompile.runtime.applying import apply_config
from autocompile.settings.config import EAGER, CompileConfig
from autocompile.settings.searchspace import SearchSpace

MODELS = TARGETS / "dimensions.py"


def setting(backend: str, **more: Any) -> dict[str, Any]:
    return {"config": CompileConfig(backend, **more).to_dict()}


def test_what_torch_does_not_take_is_refused_in_words() -> None:
    with pytest.raises(
        UsageError, match="autocast 'bf16' is none of none, bfloat16, float16"
    ):
        SearchSpace(autocast=("bf16",))
    with pytest.raises(UsageError, match="cannot go together"):
        CompileConfig(mode="max-autotune", options={"cpp_wrapper": True})
    with pytest.raises(UsageError, match="torch takes either"):
        SearchSpace(modes=("max-autotune",), options=({"cpp_wrapper": True},))
    SearchSpace(modes=("max-autotune",), options=({},))


@pytest.mark.parametrize(
    ("phase", "backend"), [("forward", "eager"), ("train_step", "aot_eager")]
)
def test_lower_precision_is_compared_with_eager_at_that_precision(
    try_it: Try, phase: str, backend: str
) -> None:
    result = try_it(MODELS, phase, **setting(backend, autocast="bfloat16"))
    assert result["outcome"] == "ok", result["message"]
    (said,) = [n for n in result["notes"] if n.startswith("at the requested precision")]
    assert 1e-4 < float(said.rpartition(" ")[2]) < 0.1


def test_the_users_tolerance_holds_for_lower_precision_too(try_it: Try) -> None:
    result = try_it(MODELS, tolerance=1e-5, **setting("eager", autocast="bfloat16"))
    assert result["outcome"] == "wrong_output"
    assert "tolerance 1e-05" in result["message"]


@pytest.mark.parametrize("scope", ["model", "step"])
def test_a_training_step_is_compared_with_the_same_parts_under_autocast(
    tmp_path: Path, try_it: Try, scope: str
) -> None:
    """Its loss is in float32 where it is computed under autocast, too, else in bfloat16."""
    file = tmp_path / "model.py"
    file.write_text(
        "import torch\n"
        "def get_model(): return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())\n"
        "def get_inputs(): return torch.randn(16, 8)\n"
        "def get_optimizer(model): return torch.optim.AdamW(model.parameters())\n"
        "def get_loss(output, inputs):\n"
        "    return torch.nn.functional.cross_entropy(output, torch.arange(16) % 8)\n"
    )
    config = CompileConfig("aot_eager", scope=scope, autocast="bfloat16").to_dict()
    assert try_it(file, "train_step", config=config)["outcome"] == "ok"


def test_a_liar_is_caught_under_autocast(try_it: Try) -> None:
    target = TARGETS / "faulty_backends.py"
    result = try_it(target, **setting("zeros", autocast="bfloat16"))
    assert result["outcome"] == "wrong_output", result["message"]


def test_fast_products_are_tried_like_anything_else(try_it: Try) -> None:
    result = try_it(MODELS, **setting("aot_eager", precision="high"))
    assert (result["outcome"], result.get("weights_live")) == ("ok", True), result[
        "message"
    ]


def test_what_overflows_at_a_lower_precision_is_refused(try_it: Try) -> None:
    result = try_it(f"{MODELS}:loud", **setting("eager", autocast="float16"))
    assert result["outcome"] == "wrong_output"
    assert "overflows in eager mode too" in result["message"]


def test_labels_that_change_count_and_bound_as_numbers_do(try_it: Try) -> None:
    more = setting("eager", autocast="bfloat16")
    result = try_it(f"{MODELS}:labels", **more)
    (said,) = [n for n in result["notes"] if n.startswith("at the requested precision")]
    assert float(said.rpartition(" ")[2]) > 0
    assert (
        try_it(f"{MODELS}:labels", tolerance=1e-9, **more)["outcome"] == "wrong_output"
    )


def space_of(file: Path | None, flags: Mapping[str, Any]) -> SearchSpace:
    """The space of a command line, by its flags."""
    typed = {
        each.path: each.option.kind.read(each.option.flag, texts)
        for each in options.of_search()
        if (texts := flags.get(each.name))
    }
    given = typed if file is None else {**typed, ("space",): file}
    found: SearchSpace = options.given(given)["space"]
    return found


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        (
            'autocast = ["none", "bfloat16"]',
            {"autocast": ["none,bfloat16"], "backend": None},
        ),
        ('dynamic = ["none", true]', {"dynamic": ["none,true"]}),
        (
            'options = [{}, { cpp_wrapper = true, "cpp.simdlen" = 256 }]',
            {"option": ("none", "cpp_wrapper=true,cpp.simdlen=256")},
        ),
        ("options = ['cpp_wrapper']", "options is not a list of tables"),
        ("options = [{ cpp_wrapper = [1] }]", "whose values are no lists"),
        ("options = []", "options: .* is not some values"),
    ],
)
def test_a_file_says_what_flags_do_or_is_refused(
    tmp_path: Path, text: str, flags: dict[str, Any] | str
) -> None:
    file = tmp_path / "space.toml"
    file.write_text(text)
    if isinstance(flags, str):
        with pytest.raises(UsageError, match=flags):
            space_of(file, {})
    else:
        assert space_of(file, {}) == space_of(None, flags) != SearchSpace()
        assert space_of(file, {"option": ("none",)}).options == ((),)


def test_a_flag_that_is_wrong_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    file = tmp_path / "space.toml"
    file.write_text("options = [{}]\n")
    with pytest.raises(UsageError) as caught:
        space_of(file, {"batch_size": ("0",)})
    assert "space.toml" not in caught.value.what


def test_a_module_and_a_function_are_compiled_under_autocast() -> None:
    model = torch.nn.Linear(4, 4).eval()
    config = CompileConfig("aot_eager", autocast="bfloat16")
    assert apply_config(model, "forward", config) is model
    for _ in range(2):
        assert model(torch.ones(2, 4)).dtype is torch.bfloat16
    apply_config(model, "forward", EAGER)
    assert model(torch.ones(2, 4)).dtype is torch.float32
    whole = dataclasses.replace(config.eager_reference, scope="step")
    step = apply_config(lambda: model(torch.ones(2, 4)).dtype, "train_step", whole)
    assert step() is torch.bfloat16
