"""The models of studies/search: their settings can be made, differ, and suit what is timed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from conftest import ROOT

from autocompile.runtime.compiling import blocks_in_words
from autocompile.runtime.optimizers import implementations
from autocompile.settings.config import EAGER
from autocompile.settings.dimensions import Place, why_not


def load(path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    name = f"study_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)  # dataclasses look a module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load(ROOT / "studies/search/models.py", monkeypatch)


def place_of(
    name: str, phase: str, device: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> Place:
    """What autocompile finds out about a target; of RLlib's what is known of them."""
    if name.startswith("ppo_"):
        return Place(phase, device, 2, has_convolutions=name == "ppo_cnn")
    target = load(path, monkeypatch)
    model = target.get_model()
    on_cpu: list[str] = []
    if hasattr(target, "get_optimizer"):
        on_cpu = implementations(target.get_optimizer(model))
    captured = () if name == "sgd" else ("capturable",)
    on_cuda = ("for_loop", *captured) if on_cpu and device == "cuda" else ()
    return Place(
        phase,
        device,
        2,
        has_convolutions=any(p.dim() == 4 for p in model.parameters()),
        regions=blocks_in_words(model),
        optimizers=(*on_cuda, *on_cpu),
    )


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_settings_suit_their_model(
    models: ModuleType, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, model in models.MODELS.items():
        place = place_of(name, model.phase, device, ROOT / model.target, monkeypatch)
        found = models.settings(model, device)
        refused = {c.label(): why for c in found if (why := why_not(c, place))}
        assert not refused, (name, refused)
        assert found[0] == EAGER
        assert 15 <= len(found) == len(set(found)) <= 20, (name, len(found))
        # What a model could make use of is tried.
        assert any(c.scope == "regional" for c in found) == bool(
            place.regions and place.phase != "optimizer_step"
        ), (name, place.regions)
        assert any(c.memory_format == "channels_last" for c in found) == (
            place.has_convolutions and place.phase != "optimizer_step"
        ), name


def test_every_target_is_in_the_table(models: ModuleType) -> None:
    files = {path.stem for path in (ROOT / "studies/search/targets").glob("*.py")}
    assert set(models.MODELS) == files
