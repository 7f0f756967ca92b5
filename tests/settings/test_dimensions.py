"""Every dimension of a setting in a real trial: it takes effect, is verified, and is explained."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TARGETS
from in_process import Try

import autocompile
from autocompile.execute.executor import Ending
from autocompile.search.records import answer, to_record
from autocompile.settings.config import CompileConfig, Setting
from autocompile.settings.dimensions import DIMENSIONS, SEARCHED
from autocompile.settings.searchspace import SearchSpace
from autocompile.store.record import Outcome, Step

MODELS = TARGETS / "dimensions.py"


def setting(backend: str = "inductor", **more: Any) -> dict[str, Any]:
    return {"config": CompileConfig(backend, **more).to_dict()}


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_channels_last_and_threads_take_effect_and_weights_stay_live(
    try_it: Try, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen from inside the calls of compiled code; of eager mode, from those of both sides."""
    torch.set_num_threads(3)  # not one, wherever this runs; the fixture puts it back
    seen: set[tuple[int, bool]] = set()

    def look(tensors: Iterable[Any]) -> None:
        for x in tensors:
            if isinstance(x, torch.nn.Parameter) and x.dim() == 4:
                is_last = x.is_contiguous(memory_format=torch.channels_last)
                seen.add((torch.get_num_threads(), is_last))

    place = importlib.import_module("torch._inductor.compile_fx")
    compiler = place.compile_fx

    def compile_it(*given: Any, **more: Any) -> Callable[..., Any]:
        compiled = compiler(*given, **more)
        return lambda *args: (look(args), compiled(*args))[1]

    monkeypatch.setattr(place, "compile_fx", compile_it)
    with contextlib.ExitStack() as stack:
        if backend == "eager":
            hook = torch.nn.modules.module.register_module_forward_pre_hook
            stack.callback(
                hook(lambda module, _: look(module.parameters(recurse=False))).remove
            )
        result = try_it(
            MODELS, **setting(backend, memory_format="channels_last", threads=1)
        )
    assert seen == ({(1, True), (3, False)} if backend == "eager" else {(1, True)})
    assert (result["outcome"], result.get("weights_live")) == ("ok", True), result[
        "message"
    ]
    assert (result["compile_s"] is not None) == (backend != "eager")


def test_frozen_weights_are_folded_and_frozen_anew_when_they_change(
    try_it: Try,
) -> None:
    result = try_it(MODELS, calls_per_update=100, **setting(freezing=True))
    assert (result["outcome"], result.get("weights_live")) == ("ok", True), result[
        "message"
    ]
    assert result["refresh_s"] > 0.05  # a compile
    assert result["calls_per_update"] == 100


def test_what_a_model_writes_to_cannot_be_frozen(try_it: Try) -> None:
    result = try_it(f"{MODELS}:counting", **setting(freezing=True))
    assert result["outcome"] != "ok"
    assert "writes to its own buffers" in result["message"]


@pytest.mark.usefixtures("_onnx_translations")
@pytest.mark.parametrize("weights", ["live", "baked"])
def test_onnx_runtime_follows_the_weights(try_it: Try, weights: str) -> None:
    options = {"weights": weights} if weights == "baked" else {}
    result = try_it(MODELS, **setting("onnxrt", options=options))
    assert (result["outcome"], result.get("weights_live")) == ("ok", True), result[
        "message"
    ]
    assert (result["refresh_s"] is not None) == (weights == "baked")


def test_one_graph_serves_all_regions(try_it: Try) -> None:
    result = try_it(f"{MODELS}:blocks", **setting(scope="regional"))
    assert (result["outcome"], result.get("weights_live")) == ("ok", True), result[
        "message"
    ]
    assert result["graphs"] == 1


def test_a_model_without_repeated_blocks_has_no_regions(try_it: Try) -> None:
    result = try_it(MODELS, **setting(scope="regional"))
    assert result["outcome"] == "unsupported"
    assert "Convolving repeats no block" in result["message"]


@pytest.mark.parametrize(
    ("phase", "name", "backend"),
    [
        ("optimizer_step", "fused", "eager"),
        ("optimizer_step", "tensor_lr", "eager"),
        ("optimizer_step", "tensor_lr", "aot_eager"),
        ("train_step", "fused", "eager"),
        ("train_step", "tensor_lr", "eager"),
    ],
)
def test_another_implementation_of_the_optimizer_is_a_candidate(
    try_it: Try, phase: str, name: str, backend: str
) -> None:
    result = try_it(MODELS, phase, **setting(backend, optimizer=name))
    assert result["outcome"] == "ok", result["message"]


def test_the_probe_says_what_the_model_offers(try_it: Try) -> None:
    found = try_it(MODELS, "train_step", kind="probe")["target"]
    assert found["has_convolutions"] is True
    assert found["regions"] == {"train_step": ""}
    assert found["optimizers"] == ["fused", "tensor_lr"]
    assert (found["optimizer"]["class"], found["optimizer"]["arguments"]) == (
        "Adam",
        {},
    )
    found = try_it(f"{MODELS}:blocks", kind="probe")["target"]
    assert found["has_convolutions"] is False
    assert found["regions"] == {"forward": "4 Block"}
    assert found["writes_buffers"] == {"forward": False}
    counting = try_it(f"{MODELS}:counting", kind="probe")["target"]
    assert counting["writes_buffers"] == {"forward": True}
    assert (found["optimizers"], found["optimizer"]) == ([], None)


def test_a_graph_given_up_as_a_whole_does_not_answer_for_fullgraph(try_it: Try) -> None:
    """Dynamo counts no graph break where one is inside a loop."""
    result = try_it(f"{MODELS}:looping", **setting("aot_eager"))
    assert (result["outcome"], result["graph_breaks"]) == ("ok", 0), result["message"]
    ours = CompileConfig("aot_eager")
    plain = Setting(ours, 4)
    record = to_record(0, plain, Ending(Outcome.OK, Step.EXIT, payload=result))
    full = Setting(dataclasses.replace(ours, fullgraph=True), 4)
    assert answer(1, full, {plain: record}) is None
    whole = try_it(MODELS, **setting("aot_eager"))
    record = to_record(0, plain, Ending(Outcome.OK, Step.EXIT, payload=whole))
    assert answer(1, full, {plain: record}) is not None


ENTRY = """
    Dimension(
        "tint",
        "none",
        "comma list of none, blue",
        ("none", "blue"),
        label=lambda value: f"{value} tint",
        applied="model",
    ),
"""
FUNCTION = '"tint": lambda model, value: setattr(model, "tint", value), '
USES_OF_THE_TABLE = """
import os
from pathlib import Path

import torch
from typer.testing import CliRunner

import autocompile
from autocompile.cli.commands import app
from autocompile.cli import options
from autocompile.export.lines import Facts, uses_apply
from autocompile.export.stacks import not_carried
from autocompile.runtime.applying import prepare_model
from autocompile.protocol.requests import ProbeResult
from autocompile.settings.config import CompileConfig
from autocompile.settings.dimensions import Place
from autocompile.space.space import build_space
from autocompile.settings.config import Setting
from autocompile.settings.searchspace import SearchSpace

here = Path(autocompile.__file__).parent.parent
assert here == Path.cwd()
blue = CompileConfig(tint="blue")

typed = CliRunner().invoke(app, ["tune", "--help-all"], terminal_width=200).output
assert "--tint" in typed and "comma list of none, blue" in typed, typed
Path("model.py").write_text("")
wrong = CliRunner().invoke(app, ["tune", "model.py", "--tint", "red"]).exception
assert wrong.what == "tint 'red' is none of none, blue", wrong
kind = options.DECLARED["space.tint"].option.kind
given = {("space", "tint"): kind.read("--tint", ["blue"])}
assert options.given(given)["space"] == SearchSpace(tint=("blue",))
Path("space.toml").write_text('tint = ["none", "blue"]')
given = {("space",): Path("space.toml")}
assert options.given(given)["space"].tint == ("none", "blue")

offered = ProbeResult(backends={"inductor": ""}, modes={"default": "default"})
found = build_space(SearchSpace(), offered, Place("forward", "cpu"), (1,))
assert {s.config.tint for s in found.settings} == {"none", "blue"}
assert Setting(blue, 1).params()["tint"] == "blue"

assert blue.to_dict()["tint"] == "blue"
assert CompileConfig.from_dict(blue.to_dict()) == blue
assert blue.label() == "inductor · blue tint"
assert blue.features - CompileConfig().features == {"tint=blue"}

assert uses_apply(Facts(), blue) and not uses_apply(Facts(), CompileConfig())
assert not_carried(blue) == ["tint='blue'"]
model = torch.nn.Linear(1, 1)
prepare_model(model, blue)
assert model.tint == "blue"
"""


def test_every_field_has_a_row_and_every_row_a_field() -> None:
    fields = {f.name: f.default for f in dataclasses.fields(CompileConfig)}
    assert fields == {d.name: d.default for d in DIMENSIONS}
    assert [f.name for f in dataclasses.fields(SearchSpace)] == [
        d.asked for d in SEARCHED
    ]


TINT = '    tint: Asked = values_of("tint")\n'


def test_a_dimension_is_a_row_two_fields_and_a_function(tmp_path: Path) -> None:
    """A copy of the package with one more row has it everywhere."""
    copied = tmp_path / "autocompile"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(autocompile.__file__).parent, copied, ignore=ignored)
    for name, place, added in (
        ("settings/dimensions.py", '    Dimension("environment", ', ENTRY),
        ("settings/config.py", "    environment: str = ", '    tint: str = "none"\n'),
        ("settings/searchspace.py", "    autocast: Asked = ", TINT),
        ("runtime/applying.py", '"memory_format": _lay_out', FUNCTION),
    ):
        text = (copied / name).read_text("utf-8")
        assert text.count(place) == 1
        (copied / name).write_text(text.replace(place, added + place), "utf-8")
    subprocess.run(
        [sys.executable, "-c", USES_OF_THE_TABLE],
        check=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "COLUMNS": "200"},
    )
