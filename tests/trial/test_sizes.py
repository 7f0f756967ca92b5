"""Axes that are marked dynamic and calls that are padded, in trials and in a user's process."""

from __future__ import annotations

import inspect
import itertools
import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import Try

import autocompile
from autocompile.errors import UsageError
from autocompile.runtime.machine import describe
from autocompile.runtime.sizes import with_marks, with_padding
from autocompile.settings.config import CompileConfig
from autocompile.settings.tuned import Choice, Tuned, TunedSet

pytestmark = pytest.mark.usefixtures("_dynamo_as_it_was")

MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(9, 8)
    def forward(self, ids, mask):
        hidden = self.words(ids) * mask.unsqueeze(-1)
        RETURN

def get_model(): return Net()
def get_calls():
    for n in (5, 9, 9, 16, 21):
        yield {"ids": torch.randint(0, 9, (2, n)), "mask": torch.ones(2, n)}
"""
PAD = """
def pad(inputs, size):
    more = size - inputs["ids"].shape[1]
    return {name: torch.nn.functional.pad(x, (0, more)) for name, x in inputs.items()}
"""
UNPAD = """
def unpad(outputs, size): return outputs[:, :size]
"""
SUM, EACH = "return hidden.sum(1)", "return hidden"
MEAN = "return hidden.mean(1)"  # over what is padded, too
SPECIAL = "return hidden.sum(1) if ids.shape[1] != 5 else hidden.sum(1) + 0"
MARKS = (("ids", 1, 5, 21), ("mask", 1, 5, 21))
POWERS, QUANTILES = (8, 16, 32), (9, 16, 21)


def write(folder: Path, result: str, *more: str) -> Path:
    path = folder / "model.py"
    path.write_text(MODEL.replace("RETURN", result) + "".join(more))
    return path


def padded(edges: tuple[int, ...] = POWERS, unpads: bool = False) -> CompileConfig:
    return CompileConfig("aot_eager", dynamic=False, buckets=("ids", 1, edges, unpads))


def tried(try_it: Try, config: CompileConfig, phase: str = "forward") -> dict[str, Any]:
    return try_it("model.py", phase, config=config.to_dict(), batch_size=None)


def test_the_probe_finds_the_axes_and_the_sizes(work: Path, try_it: Try) -> None:
    write(work, EACH, PAD, UNPAD)
    found = try_it("model.py", kind="probe", phases=["forward"])["target"]
    assert found["workload"]["mark_dynamic"] == [*map(list, MARKS)]
    assert found["workload"]["buckets"] == [
        ["ids", 1, [*e], True] for e in (POWERS, QUANTILES)
    ]
    assert found["choices"]["padding"] == "pad() and unpad() of the target"


@pytest.mark.parametrize(
    ("pad", "said"),
    [
        (
            "def pad(inputs, size): return inputs",
            r"pad\(inputs, 6\) .* no tensor of size 6 along",
        ),
        (
            "def pad(inputs, size): return torch.ones(2)",
            r"it gives 2 for inputs of 2×5",
        ),
        (
            "def pad(inputs, size): raise KeyError('mask')",
            r"pad\(inputs, 6\) .* fails: KeyError",
        ),
    ],
)
def test_a_wrong_pad_is_one_paragraph(
    work: Path, try_it: Try, pad: str, said: str
) -> None:
    write(work, SUM, pad)
    found = try_it("model.py", kind="probe", phases=["forward"])
    assert found["outcome"] == "runtime_error"
    assert re.search(said, " ".join([found["message"], *found["explained"]["details"]]))
    assert "along the axis" in found["explained"]["hint"]


def test_a_pad_that_a_file_imports_is_not_its_own(work: Path, try_it: Try) -> None:
    write(work, SUM, "from torch.nn.functional import pad\n")
    found = try_it("model.py", kind="probe", phases=["forward"])["target"]
    assert found["workload"]["buckets"] == []


@pytest.mark.parametrize("phase", ["forward", "train_step"])
def test_marked_axes_are_one_program_at_once(
    work: Path, try_it: Try, phase: str
) -> None:
    write(work, SUM)
    graphs = [
        tried(try_it, CompileConfig("aot_eager", mark_dynamic=marks), phase)["graphs"]
        for marks in (MARKS, ())
    ]
    assert graphs == [1, 2]


def test_an_axis_that_the_model_takes_for_a_constant_cannot_be_marked(
    work: Path, try_it: Try
) -> None:
    write(work, SPECIAL)
    result = tried(try_it, CompileConfig("aot_eager", mark_dynamic=MARKS))
    assert result["outcome"] == "compile_error"
    assert "is a constant of the model, 5, and was marked dynamic" in result["message"]


@pytest.mark.parametrize("phase", ["forward", "train_step"])
@pytest.mark.parametrize(
    ("result", "unpads", "outcome"),
    [(SUM, False, "ok"), (EACH, True, "ok"), (MEAN, False, "wrong_output")],
)
def test_padded_calls_are_compared_with_those_of_eager_mode(
    work: Path, try_it: Try, phase: str, result: str, unpads: bool, outcome: str
) -> None:
    write(work, result, PAD, UNPAD)
    found = tried(try_it, padded(unpads=unpads), phase)
    assert found["outcome"] == outcome, found["message"]
    if outcome == "ok":
        assert found["graphs"] == len(POWERS)
        assert found["kinds"][0]["shape"] == "2×9"


def test_results_of_the_padded_shape_ask_for_unpad(work: Path, try_it: Try) -> None:
    write(work, EACH, PAD)
    found = tried(try_it, padded())
    assert found["outcome"] == "wrong_output"
    assert "define unpad(outputs, size)" in found["message"]


def test_a_target_without_pad_is_told_so(work: Path, try_it: Try) -> None:
    write(work, SUM)
    found = tried(try_it, padded())
    assert found["outcome"] == "unsupported"
    assert "needs pad(..., size) of the file" in found["message"]


def applied(
    folder: Path, config: CompileConfig, result: str, **padding: Any
) -> tuple[torch.nn.Module, torch.nn.Module, dict[str, Any]]:
    """A model to which a file of settings is applied, an unchanged one, and the user's file."""
    there = runpy.run_path(str(write(folder, result, PAD, UNPAD)))
    model, eager = there["get_model"](), there["get_model"]()
    eager.load_state_dict(model.state_dict())
    here = describe(torch.device("cpu"))
    tuned = Tuned(
        {"forward": (Choice(config, None, {"value": 1.5}, 3),)}, here, "model.py"
    )
    (folder / "tuned.json").write_text(TunedSet((tuned,)).to_json())
    given = {name: there[name] for name in padding}
    autocompile.apply(model, folder / "tuned.json", **given)
    return model, eager, there


def graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def test_marks_of_a_file_make_one_program_and_stay_on_no_tensor(tmp_path: Path) -> None:
    config = CompileConfig("aot_eager", mark_dynamic=MARKS)
    model, eager, there = applied(tmp_path, config, SUM)
    before = graphs()
    for call in there["get_calls"]():
        torch.testing.assert_close(model(call["ids"], mask=call["mask"]), eager(**call))
        assert not {*vars(call["ids"])} & {
            "_dynamo_dynamic_indices",
            "_has_dynamo_dim_marking",
        }
    assert graphs() == before + 1
    # Sizes that are constants to Dynamo, or that no call had, are not marked: no error.
    for size in (1, 40):
        call = {
            "ids": torch.zeros(2, size, dtype=torch.long),
            "mask": torch.ones(2, size),
        }
        torch.testing.assert_close(model(**call), eager(**call))


@pytest.mark.parametrize(("result", "more"), [(SUM, {}), (EACH, {"unpad": True})])
def test_calls_are_padded_in_a_users_process(
    tmp_path: Path, result: str, more: dict[str, bool]
) -> None:
    config = padded(unpads=bool(more))
    model, eager, there = applied(tmp_path, config, result, pad=True, **more)
    before = graphs()
    for call in there["get_calls"]():
        for given, named in (((), call), (call.values(), {})):
            torch.testing.assert_close(model(*given, **named), eager(**call))
    assert graphs() == before + len(POWERS)
    longer = {"ids": torch.zeros(2, 40, dtype=torch.long), "mask": torch.ones(2, 40)}
    torch.testing.assert_close(model(**longer), eager(**longer))
    assert graphs() == before + len(POWERS) + 1


def test_a_setting_that_pads_needs_pad(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"needs pad\(") as raised:
        applied(tmp_path, padded(), SUM)
    assert raised.value.hint == "autocompile.apply(model, settings, pad=pad)"
    with pytest.raises(UsageError, match=r"needs unpad\("):
        applied(tmp_path, padded(unpads=True), EACH, pad=True)


@pytest.mark.skipif(
    "isolate_recompiles" not in inspect.signature(torch.compile).parameters,
    reason="this torch.compile has no isolate_recompiles",
)
def test_a_limit_is_of_its_own_compile_alone() -> None:
    """Two of one function, with more programs together than each may have."""

    class Twice(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    config = CompileConfig("aot_eager", dynamic=False, recompile_limit=16)
    here = describe(torch.device("cpu"))
    tuned = Tuned(
        {"forward": (Choice(config, None, {"value": 1.5}, 3),)}, here, "model.py"
    )
    models = [autocompile.apply(Twice(), tuned) for _ in range(2)]
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        before = graphs()
        for model, size in itertools.product(models, range(2, 14)):
            model(torch.ones(size))
    assert graphs() == before + 2 * 12


def test_a_file_keeps_both(tmp_path: Path) -> None:
    for config in (padded(), CompileConfig(mark_dynamic=MARKS)):
        assert (
            CompileConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
        )


def test_inputs_of_a_whole_step_are_marked_in_their_dict(
    work: Path, try_it: Try
) -> None:
    write(work, SUM)
    graphs = []
    for marks in (MARKS, ()):
        config = CompileConfig("aot_eager", scope="step", mark_dynamic=marks)
        found = tried(try_it, config, "train_step")
        assert found["outcome"] == "ok", found["message"]
        graphs.append(found["graphs"])
    assert graphs[0] < graphs[1]


def test_exported_code_finds_the_functions_of_the_target(
    work: Path, try_it: Try
) -> None:
    write(work, EACH, PAD, UNPAD)
    config = padded(unpads=True)
    choice = Choice(config, None, {"value": 1.5}, 3)
    tuned = Tuned({"forward": (choice,)}, describe(torch.device("cpu")), "model.py")
    line = 'autocompile.apply(model, "tuned.json", "forward", pad=pad, unpad=unpad)'
    code = {"code": f"import autocompile\n{line}", "settings": tuned.to_dict()}
    side = {"number": 1, "config": config.to_dict(), "cache": "cache", "is_warm": True}
    side["exported"] = code
    limits = {"rounds": 1, "max_s": 5.0, "block_s": 0.001, "takes_turns": False}
    more = {"kind": "race", "sides": [side], "batch_size": None, **limits}
    (found,) = try_it("model.py", "forward", **more)["sides"]
    assert found["outcome"] == "ok", found["message"]


def test_a_call_that_leaves_out_an_argument_is_marked_and_is_told_that_it_is_not_padded() -> (
    None
):
    """Positions name the arguments where the calls that were measured had no names."""
    names, marked = ("ids", "more", "mask"), list[bool]()

    def function(ids: torch.Tensor, more: Any = None, mask: Any = None) -> torch.Tensor:
        marked.extend(hasattr(x, "_dynamo_dynamic_indices") for x in (ids, mask))
        return ids + mask

    ids = torch.ones(2, 9)
    with_marks(function, ((0, 1, 5, 21), (2, 1, 5, 21)), names)(
        ids, mask=torch.ones(2, 9)
    )
    assert marked == [True, True]
    pads = with_padding(
        function, (0, 1, (16,), False), names, {"pad": lambda x, size: x}
    )
    with pytest.warns(UserWarning, match="this call is not padded"):
        assert pads(ids, mask=torch.ones(2, 9)).shape == (2, 9)


def test_a_pad_that_changes_its_dictionary_leaves_the_callers(tmp_path: Path) -> None:
    def pad(inputs: dict[str, Any], size: int) -> dict[str, Any]:
        for name, x in inputs.items():
            inputs[name] = torch.nn.functional.pad(x, (0, size - x.shape[1]))
        return inputs

    batch = {"ids": torch.ones(2, 9)}
    pads = with_padding(
        lambda inputs: inputs["ids"], ("ids", 1, (16,), False), (), {"pad": pad}
    )
    assert pads(batch).shape == (2, 16)
    assert batch["ids"].shape == (2, 9)
