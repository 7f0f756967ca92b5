"""Which settings count as the same code."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._inductor.codecache import PyCodeCache

from autocompile.settings.config import CompileConfig
from autocompile.trial.measure.telemetry import same_code_key

CPU = torch.device("cpu")


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The key of a setting for which Inductor has written one module."""
    (tmp_path / "kernel.py").write_text("def call(args): ...")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    modules = [SimpleNamespace(__file__=str(tmp_path / "kernel.py"))]
    monkeypatch.setattr(PyCodeCache, "modules", modules)
    return lambda config: same_code_key(config, CPU)


def test_what_the_source_shows_does_not_tell_two_settings_apart(key: Any) -> None:
    plain = key(CompileConfig())
    assert plain
    assert key(CompileConfig(mode="max-autotune")) == plain
    assert key(CompileConfig(fullgraph=True)) == plain
    assert key(CompileConfig(dynamic=True)) == key(CompileConfig(dynamic=False))


@pytest.mark.usefixtures("key")
def test_on_a_gpu_only_what_decides_how_code_is_launched_tells_them_apart() -> None:
    def on_a_gpu(mode: str = "default", **options: bool) -> str:
        return same_code_key(CompileConfig(mode=mode, options=options), torch.device("cuda"))

    graphs = {"triton.cudagraphs": True}
    with_graphs = on_a_gpu(**graphs)
    assert on_a_gpu(**graphs, layout_optimization=False) == with_graphs
    assert on_a_gpu(**graphs, combo_kernels=True) == with_graphs
    assert on_a_gpu(mode="reduce-overhead") == with_graphs
    assert on_a_gpu(**graphs, max_autotune_pointwise=True) != with_graphs
    assert on_a_gpu() != with_graphs


def test_every_other_field_does(key: Any) -> None:
    for other in (
        {"dynamic": False},
        {"options": {"cpp.simdlen": 256}},
        {"environment": "nightly"},
        {"memory_format": "channels_last"},
        {"optimizer": "fused"},
        {"threads": 1},
        {"precision": "high"},
        {"autocast": "bfloat16"},
        {"guards": "skip_all"},
        {"freezing": True},
        {"scope": "regional"},
    ):
        assert key(CompileConfig(**other)) != key(CompileConfig()), other


def test_nothing_is_known_of_other_backends_and_where_no_code_was_written(
    key: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert key(CompileConfig("aot_eager")) == ""
    monkeypatch.setattr(PyCodeCache, "modules", [])
    assert key(CompileConfig()) == ""
