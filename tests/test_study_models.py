"""The tables of studies/search: their settings can be made, differ, and suit what is timed."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import ROOT

from autocompile.runtime.compiling import blocks_in_words
from autocompile.runtime.optimizers import implementations
from autocompile.settings.config import EAGER, CompileConfig
from autocompile.settings.dimensions import Place, why_not


def load(path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    name = f"study_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)  # dataclasses look a module up
    spec.loader.exec_module(module)
    return module


SEARCH = ROOT / "studies/search"


def tables(device: str) -> dict[str, dict[str, Any]]:
    return json.loads((SEARCH / f"{device}.json").read_text("utf-8"))["tables"]


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
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, table in tables(device).items():
        phase = table["phase"]
        path = SEARCH / "targets" / f"{name}.py"
        place = place_of(name, phase, device, path, monkeypatch)
        found = [CompileConfig.from_dict(r["config"], phase) for r in table["rows"]]
        refused = {c.label(): why for c in found if (why := why_not(c, place))}
        assert not refused, (name, refused)
        assert found[0] == EAGER and CompileConfig() in (
            dataclasses.replace(c, scope="model") for c in found
        )
        assert 13 <= len(found) == len(set(found)) <= 20, (name, len(found))
        assert len({row["batch_size"] for row in table["rows"]}) == 1, name


def test_every_target_has_a_table() -> None:
    files = {path.stem for path in (SEARCH / "targets").glob("*.py")}
    assert set(tables("cpu")) == files
    assert set(tables("cuda")) < files
