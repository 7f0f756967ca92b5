"""Every dimension of a setting in a real trial: it takes effect, is verified, and is explained."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from conftest import TARGETS
from in_process import Try
from torch._dynamo.backends.registry import _COMPILER_FNS

from autocompile.execute.executor import Ending
from autocompile.search.records import to_record
from autocompile.search.reuse import answer
from autocompile.settings.config import CompileConfig
from autocompile.space.space import Setting
from autocompile.store.record import Outcome, Step

MODELS = TARGETS / "dimensions.py"


def setting(backend: str = "inductor", **more: Any) -> dict[str, Any]:
    return {"config": CompileConfig(backend, **more).to_dict()}


@dataclasses.dataclass
class Seen:
    """What was seen from inside calls."""

    threads: list[int] = dataclasses.field(default_factory=list)
    channels_last: list[bool] = dataclasses.field(default_factory=list)

    def look(self, tensors: Iterable[Any]) -> None:
        self.threads.append(torch.get_num_threads())
        for x in tensors:
            if isinstance(x, torch.nn.Parameter) and x.dim() == 4:
                self.channels_last.append(x.is_contiguous(memory_format=torch.channels_last))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Seen]]:
    """From inside the calls of a backend's code; of eager mode, those of both sides."""
    found, hooks = Seen(), []

    def spy(compiler: Callable[..., Any]) -> Callable[..., Any]:
        def compile_it(*given: Any, **more: Any) -> Callable[..., Any]:
            compiled = compiler(*given, **more)

            def call(*args: Any) -> Any:
                found.look(args)
                return compiled(*args)

            return call

        return compile_it

    def of(backend: str) -> Seen:
        if backend == "eager":
            look = torch.nn.modules.module.register_module_forward_pre_hook
            hooks.append(look(lambda module, _: found.look(module.parameters(recurse=False))))
        elif backend == "inductor":
            place = importlib.import_module("torch._inductor.compile_fx")
            monkeypatch.setattr(place, "compile_fx", spy(place.compile_fx))
        else:
            torch._dynamo.list_backends(None)
            compiler = torch._dynamo.lookup_backend(backend)
            monkeypatch.setitem(_COMPILER_FNS, backend, spy(compiler))
        return found

    yield of
    for hook in hooks:
        hook.remove()


def test_eager_with_weights_channels_last_is_a_candidate(
    try_it: Try, seen: Callable[[str], Seen]
) -> None:
    look = seen("eager")
    result = try_it(MODELS, **setting("eager", memory_format="channels_last"))
    assert set(look.channels_last) == {True, False}  # and eager as it stands
    assert result["outcome"] == "ok", result["message"]
    assert result["weights_live"] is True
    assert "compile_s" not in result


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_weights_channels_last_are_compiled_and_stay_live(
    try_it: Try, backend: str, seen: Callable[[str], Seen]
) -> None:
    look = seen(backend)
    result = try_it(MODELS, **setting(backend, memory_format="channels_last"))
    assert set(look.channels_last) == {True}
    assert (result["outcome"], result.get("weights_live")) == ("ok", True), result["message"]


def test_frozen_weights_are_folded_and_frozen_anew_when_they_change(try_it: Try) -> None:
    result = try_it(MODELS, calls_per_update=100, **setting(freezing=True))
    assert (result["outcome"], result.get("weights_live")) == ("ok", True), result["message"]
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
    assert (result["outcome"], result.get("weights_live")) == ("ok", True), result["message"]
    assert ("refresh_s" in result) == (weights == "baked")


def test_one_graph_serves_all_regions(try_it: Try) -> None:
    result = try_it(f"{MODELS}:blocks", **setting(scope="regional"))
    assert (result["outcome"], result.get("weights_live")) == ("ok", True), result["message"]
    assert result["graphs"] == 1


def test_a_model_without_repeated_blocks_has_no_regions(try_it: Try) -> None:
    result = try_it(MODELS, **setting(scope="regional"))
    assert result["outcome"] == "unsupported"
    assert "Convolving repeats no block" in result["message"]


@pytest.mark.parametrize("phase", ["optimizer_step", "train_step"])
@pytest.mark.parametrize("name", ["fused", "tensor_lr"])
def test_another_implementation_of_the_optimizer_is_a_candidate(
    try_it: Try, phase: str, name: str
) -> None:
    result = try_it(MODELS, phase, **setting("eager", optimizer=name))
    assert result["outcome"] == "ok", result["message"]


def test_it_can_be_compiled_too(try_it: Try) -> None:
    result = try_it(MODELS, "optimizer_step", **setting("aot_eager", optimizer="tensor_lr"))
    assert result["outcome"] == "ok", result["message"]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_setting_may_have_fewer_threads_than_eager(
    try_it: Try, backend: str, seen: Callable[[str], Seen]
) -> None:
    torch.set_num_threads(3)  # not one, wherever this runs; the fixture puts it back
    look = seen(backend)
    result = try_it(MODELS, **setting(backend, threads=1))
    assert set(look.threads) == ({1, 3} if backend == "eager" else {1})
    assert result["outcome"] == "ok", result["message"]


def test_the_probe_says_what_the_model_offers(try_it: Try) -> None:
    found = try_it(MODELS, "train_step", kind="probe")["target"]
    assert found["has_convolutions"] is True
    assert found["regions"] == {"train_step": ""}
    assert found["optimizers"] == ["fused", "tensor_lr"]
    assert (found["optimizer"]["class"], found["optimizer"]["arguments"]) == ("Adam", {})
    found = try_it(f"{MODELS}:blocks", kind="probe")["target"]
    assert found["has_convolutions"] is False
    assert found["regions"] == {"forward": "4 Block"}
    assert (found["optimizers"], found["optimizer"]) == ([], None)


def test_a_graph_given_up_as_a_whole_does_not_answer_for_fullgraph(try_it: Try) -> None:
    """Dynamo counts no graph break where one is inside a loop."""
    result = try_it(f"{MODELS}:looping", **setting("aot_eager"))
    assert (result["outcome"], result["graph_breaks"]) == ("ok", 0), result["message"]
    ours = CompileConfig("aot_eager")
    plain = Setting(ours, 4)
    record = to_record(0, "forward", plain, Ending(Outcome.OK, Step.EXIT, payload=result))
    full = Setting(dataclasses.replace(ours, fullgraph=True), 4)
    assert answer(1, full, {plain: record}, None) is None
    whole = try_it(MODELS, **setting("aot_eager"))
    record = to_record(0, "forward", plain, Ending(Outcome.OK, Step.EXIT, payload=whole))
    assert answer(1, full, {plain: record}, None) is not None
