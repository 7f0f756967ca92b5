"""Live models: written to a file in the user's process, loaded in trials."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import autocompile
from autocompile.errors import TargetError, UsageError
from autocompile.runtime.carried import carry

LINEAR, ONES = torch.nn.Linear(3, 4), torch.ones(1, 3)
NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x):
        return torch.relu(self.layer(x))
"""
TUNE = """
import asyncio, autocompile

def tune():
    return autocompile.tune(
        Net(), lambda n: torch.randn(n, 8), phases=("forward",), effort="quick", trials=2,
        space=autocompile.SearchSpace(backends=("aot_eager",), batch_sizes=(2,)),
    )

async def main():
    return await asyncio.to_thread(tune)

result = asyncio.run(main())
print(result.verdict["forward"], len([t for t in result.trials if t.ok]) > 1)
model = torch.compile(Net(), **result.kwargs["forward"])
assert model(torch.randn(2, 8)).shape == (2, 8)
assert "forward" in str(result)
"""
CARRY = """
from pathlib import Path
import torch
from net import Net
from autocompile.runtime.carried import carry
print(carry(Net(), torch.ones(2, 8), Path("carried")))
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return done


def test_a_model_comes_back_with_its_weights_and_as_often_as_it_is_built(
    tmp_path: Path,
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    found = runpy.run_path(str(carry(model, {"input": torch.ones(2, 3)}, tmp_path)))
    first, second = found["get_model"](), found["get_model"]()
    assert first is not second
    assert torch.equal(first[0].weight, model[0].weight)
    assert torch.equal(found["get_inputs"]()["input"], torch.ones(2, 3))
    assert "get_optimizer" not in found


def test_what_trials_unpickle_only_its_owner_may_write_and_nobody_sees_in_parts(
    tmp_path: Path,
) -> None:
    model, before = torch.nn.Linear(2, 2), os.umask(0)
    try:
        first = carry(model, {"input": torch.ones(2)}, tmp_path / "new")
        files = list(first.parent.iterdir())
        held = {
            path: path.open("rb") for path in files
        }  # as a trial of another run reads them
        content = {path: path.read_bytes() for path in files}
        assert carry(model, {"input": torch.ones(2)}, tmp_path / "new") == first
    finally:
        os.umask(before)
    for path in (*files, first.parent, tmp_path / "new"):
        assert not path.stat().st_mode & 0o022, path
    for path, file in held.items():
        assert file.read() == content[path]
        assert os.fstat(file.fileno()).st_ino != path.stat().st_ino, (
            "replaced, not written over"
        )
        file.close()


def test_functions_of_a_script_travel_by_value(tmp_path: Path) -> None:
    width = 3
    file = carry(
        lambda: torch.nn.Linear(width, 1),
        lambda batch_size: torch.zeros(batch_size, width),
        tmp_path,
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.5),
        loss=lambda output, inputs: output.mean(),
    )
    found = runpy.run_path(str(file))
    model = found["get_model"]()
    assert found["get_inputs"](5).shape == (5, 3)
    assert found["get_optimizer"](model).defaults["lr"] == 0.5
    assert found["get_loss"](torch.ones(2), None) == 1


def test_the_same_model_has_the_same_file(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 4)
    assert carry(model, ONES, tmp_path) == carry(model, ONES, tmp_path)
    with torch.no_grad():
        model.weight += 1
    assert len({carry(model, ONES, tmp_path), *tmp_path.glob("*/live_linear.py")}) == 2


def test_what_cannot_be_pickled_is_named(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 4)
    model.lock = threading.Lock()
    with pytest.raises(TargetError, match=r"model cannot be carried.*lock") as caught:
        carry(model, ONES, tmp_path)
    assert "%%writefile model.py" in str(caught.value.hint)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "more", "error", "words"),
    [
        ((LINEAR,), {}, TargetError, "a Linear alone is no target"),
        (
            ("model.py",),
            {"optimizer": torch.optim.SGD},
            UsageError,
            "about a live model",
        ),
        (("model.py", ONES), {}, UsageError, "about a live model"),
    ],
)
def test_a_live_model_comes_with_inputs_and_a_file_with_its_own_optimizer(
    work: Path, arguments: Any, more: Any, error: type[UsageError], words: str
) -> None:
    with pytest.raises(error, match=words):
        autocompile.tune(*arguments, **more)


def test_a_class_of_a_file_with_its_own_name_is_loaded_from_there(
    tmp_path: Path,
) -> None:
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "script.py").write_text(CARRY)
    load = (
        "from autocompile.trial.model.load import build, import_target\n"
        f"spec = {run(tmp_path, 'script.py').stdout.strip()!r}\n"
        "print(type(build(spec, import_target(spec)).model))"
    )
    assert "net.Net" in run(tmp_path, "-P", "-c", load).stdout


def test_a_class_of_a_script_is_tuned_from_a_thread_beside_an_event_loop(
    tmp_path: Path,
) -> None:
    (tmp_path / "script.py").write_text(NET + TUNE)
    done = run(tmp_path, "script.py")
    assert done.stdout.split()[1] == "True"
    assert "ok       forward batch 2" in done.stderr  # progress without a terminal
    assert (tmp_path / "runs" / "live_net-0001" / "report.json").exists()
