"""Settings in programs of two ranks, as torchrun starts them: torch's own loop and real libraries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import TARGETS
from test_tuned import AOT, settings
from torch.nn.parallel import DistributedDataParallel

import autocompile
from autocompile.errors import UsageError
from autocompile.runtime import ranks
from autocompile.runtime.ranks import Ranks, first, of_rank_0, ranks_of_program
from autocompile.settings.config import EAGER, CompileConfig
from autocompile.settings.tuned import TunedSet

pytestmark = pytest.mark.timeout(300)


def file_of(folder: Path, config: CompileConfig, count: int = 2) -> Path:
    """Settings that were measured with so many ranks."""
    (entry,) = TunedSet.read(settings(train_step={8: config})).entries
    told = json.loads(TunedSet((entry,)).to_json())
    for each in told.get("entries", [told]):
        each["decided_by"] = {"ranks": count} if count > 1 else {}
    path = folder / f"tuned_{config.ddp}_{config.backend}.json"
    path.write_text(json.dumps(told))
    return path


def ran(kind: str, tuned: Path, folder: Path) -> dict[str, Any]:
    """What rank 0 of two has after a training."""
    result = folder / f"{kind}_{tuned.stem}.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--master-port", "0", "--rdzv-backend", "c10d"]
    command += ["--rdzv-endpoint", "localhost:0", str(TARGETS / "ranks_program.py")]
    asked = subprocess.run(
        [*command, kind, str(tuned), str(result)],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    assert asked.returncode == 0, asked.stderr[-3000:]
    return dict(json.loads(result.read_text()))


def demand_same(found: dict[str, Any], eager: dict[str, Any]) -> None:
    for one, other in zip(found["weights"], eager["weights"], strict=True):
        torch.testing.assert_close(torch.tensor(one), torch.tensor(other))


@pytest.mark.parametrize("kind", ["before", "after", "fsdp2_before", "fsdp2_after"])
def test_two_ranks_train_compiled_as_they_do_in_eager_mode(
    tmp_path: Path, kind: str
) -> None:
    eager = ran(kind, file_of(tmp_path, EAGER), tmp_path)
    found = ran(kind, file_of(tmp_path, AOT), tmp_path)
    # FSDP2 gathers the parts of a module before each call of it, which no graph holds.
    assert (found["calls"], eager["calls"]) == (3, 0)
    assert found["graphs"] >= 1 if "fsdp2" in kind else found["graphs"] == 1
    demand_same(found, eager)
    assert not [words for words in found["said"] if "rank" in words]


def test_an_optimizer_of_parameters_that_were_replaced_is_refused(
    tmp_path: Path,
) -> None:
    found = ran("fsdp2_too_late", file_of(tmp_path, AOT), tmp_path)
    assert any("so it trains nothing" in words for words in found["said"])
    assert found["calls"] == 0


def test_all_ranks_take_the_entry_of_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    store = dist.HashStore()
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: store)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(ranks, "_PATIENCE", timedelta(seconds=0.2))
    found = []
    for rank in (0, 1):  # what each process would do, one after the other
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        monkeypatch.setattr(ranks, "_asked", Counter())
        found.append(of_rank_0(5 + rank, "a file"))
    assert found == [5, 5]
    with pytest.warns(UserWarning, match="rank 0 has not applied its settings"):
        assert of_rank_0(7, "another") == 7


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["accelerate", "lightning", "lightning_fsdp2", "transformers"]
)
def test_two_ranks_of_a_library_train_compiled_as_in_eager_mode(
    tmp_path: Path, kind: str
) -> None:
    library = kind.removesuffix("_fsdp2")
    pytest.importorskip({"lightning": "pytorch_lightning"}.get(library, library))
    eager = ran(kind, file_of(tmp_path, EAGER), tmp_path)
    found = ran(kind, file_of(tmp_path, AOT), tmp_path)
    # Lightning gives each rank all data where a strategy could split a model by its tensors, too.
    assert (found["calls"], eager["calls"]) == (6 if "fsdp2" in kind else 3, 0)
    assert found["graphs"]
    demand_same(found, eager)


def test_settings_of_one_rank_warn_on_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert ranks_of_program() == 2
    tuned = file_of(tmp_path, AOT, count=1)
    with pytest.warns(
        UserWarning, match="measured with 1 rank, and this program has 2"
    ):
        autocompile.apply(torch.nn.Linear(8, 4), tuned, "train_step")


def test_a_wrapper_that_is_made_otherwise_is_refused_or_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    tuned = file_of(tmp_path, CompileConfig("aot_eager", ddp="static_graph"))
    model = torch.nn.Linear(8, 4)
    with pytest.warns(UserWarning, match=r"DataParallel\(model, static_graph=True\)"):
        autocompile.apply(model, tuned, "train_step")
    # As it is after it has been made: that takes a process group.
    wrapped = DistributedDataParallel.__new__(DistributedDataParallel)
    torch.nn.Module.__init__(wrapped)
    wrapped.bucket_bytes_cap, wrapped.static_graph = 25 << 20, False
    with pytest.raises(UsageError, match="has taken the model as it was") as caught:
        autocompile.apply(wrapped, tuned, "train_step")
    assert "static_graph=True" in str(caught.value)


def test_one_process_agrees_with_itself() -> None:
    alone = Ranks()
    assert alone.agree(3, max) == alone.agree(3, first) == 3
    assert (alone.name, alone.share(4), alone.each("it")) == ("", 4, "it")
    assert alone.apart({"w": torch.ones(2)}) == ""
