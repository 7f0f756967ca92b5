"""The backend ``zentorch``, with its package: right, also after new weights, in each phase."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from conftest import TARGETS

import autocompile

# The package is never imported here: what other tests compile would have its pass.
pytestmark = pytest.mark.skipif(
    find_spec("zentorch") is None or not torch.cpu._is_avx512_supported(),
    reason="needs zentorch, and a CPU with AVX-512",
)


def test_every_setting_is_right_and_follows_the_weights(tmp_path: Path) -> None:
    result = autocompile.tune(
        TARGETS / "plain.py",
        phases=("forward", "train_step"),
        space=autocompile.SearchSpace(
            backends=("inductor", "zentorch"),
            batch_sizes=(4,),
            threads=(None,),
            fullgraph=(False,),
            modes=("default",),
            options=((),),
        ),
        budget_s=120.0,
        run_dir=tmp_path / "run",
    )
    tried = [
        r for r in result.trials if r.config.backend == "zentorch" and r.race is None
    ]
    assert {(r.phase, r.config.freezing) for r in tried} == {
        ("forward", False), ("forward", True), ("train_step", False),
    }  # fmt: skip
    assert [(r.outcome.value, r.message) for r in tried if not r.ok] == []
    assert all(r.weights_live for r in tried if r.phase == "forward")
