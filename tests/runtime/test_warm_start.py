"""Warm start: compiled code beside the settings, saved by one process and loaded by another."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor.cpp_builder import CppBuilder
from torch._inductor.utils import fresh_cache
from torch.compiler._cache import CacheArtifactManager
from typer.testing import CliRunner

import autocompile
from autocompile.cli.commands import app
from autocompile.commands.bench import export_with_cache
from autocompile.errors import UsageError
from autocompile.protocol.requests import Header, SaveRequest, SaveResult
from autocompile.runtime import warm_start
from autocompile.settings.config import CompileConfig
from autocompile.settings.tuned import Choice, Tuned, TunedSet
from autocompile.trial.channel import Channel
from autocompile.trial.tasks.saving import save

FROZEN, AOT = CompileConfig(freezing=True), CompileConfig("aot_eager")
CPU = torch.device("cpu")
SPEEDUP = {"value": 1.5, "low": 1.4, "high": 1.6}
MODEL = """
import torch

def get_model():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))

def get_inputs(batch_size):
    return torch.randn(batch_size, 4)
"""


@pytest.fixture(autouse=True)
def _as_in_a_new_process() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    with torch._inductor.config.patch(cpp_cache_precompile_headers=True):
        yield
    torch._dynamo.reset()
    counters.clear()


def settings(*, target: Path | str = "model.py", **phases: CompileConfig) -> Tuned:
    found = {name: (Choice(config, 4, SPEEDUP, 3),) for name, config in phases.items()}
    return Tuned(found, {"device": "cpu"}, str(target))


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)
    )


def file_of(tuned: Tuned, folder: Path) -> Path:
    """Settings whose cache, where there is one, is beside them."""
    cache = folder / "tuned.cache"
    sha256 = hashlib.sha256(cache.read_bytes()).hexdigest() if cache.exists() else "0"
    path = folder / "tuned.json"
    with_cache = dataclasses.replace(
        tuned, cache={"file": "tuned.cache", "sha256": sha256}
    )
    path.write_text(TunedSet((with_cache,)).to_json(), "utf-8")
    return path


def cache_of(folder: Path, **changes: Any) -> None:
    """A cache of nothing, from a machine that differs in what is given."""
    said = {**warm_start._fingerprint(CPU), **changes}
    with zipfile.ZipFile(folder / "tuned.cache", "w") as file:
        file.writestr("fingerprint.json", json.dumps(said))
        file.writestr("artifacts", b"")


def saved(made: Tuned, folder: Path) -> SaveResult:
    """What ``save`` says of a cache that it has written there."""
    header = Header(made.target, "cpu")
    request = SaveRequest(
        header=header, settings=made, file=str(folder / "tuned.cache")
    )
    result = SaveResult()
    path = list(sys.path)
    CacheArtifactManager.clear()  # of what this process has compiled before
    with fresh_cache():
        save(request, Channel(os.open(os.devnull, os.O_WRONLY), ""), result)
    sys.path[:] = path
    return result


def test_what_one_process_has_compiled_another_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    made = settings(target=tmp_path / "model.py", forward=CompileConfig())
    result = saved(made, tmp_path)
    assert result.left_out == []
    assert result.graphs == 1
    model, x = net(), torch.randn(4, 4)
    with fresh_cache(), torch.no_grad():
        monkeypatch.setattr(CppBuilder, "build", None)  # nothing has to be built
        counters.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            autocompile.apply(model, file_of(made, tmp_path))
        torch.testing.assert_close(model(x), net()(x))
    found = {**counters["aot_autograd"], **counters["inductor"]}
    assert (found.get("autograd_cache_hit"), found.get("fxgraph_cache_hit")) == (
        1,
        1,
    ), found


def without(path: Path, key: str) -> None:
    data = json.loads(path.read_text("utf-8"))
    del data["cache"][key]
    path.write_text(json.dumps(data), "utf-8")


@pytest.mark.parametrize(
    ("changes", "spoil", "words"),
    [
        ({"torch": "1.0"}, None, r"made elsewhere \(torch 1\.0, here 2"),
        ({"cpu_capability": "mmx"}, None, r"cpu_capability mmx, here"),
        (
            {},
            lambda path: cache_of(path.parent, python="1"),
            "not the file that the settings were",
        ),
        ({}, lambda path: path.with_suffix(".cache").unlink(), "No such file"),
        (
            {},
            lambda path: without(path, "sha256"),
            "not the file that the settings were",
        ),
        (None, None, "not a zip file"),  # no file of ours
    ],
)
def test_a_cache_that_does_not_fit_is_not_used_and_one_warning_says_so(
    changes: dict[str, Any] | None, spoil: Any, words: str, tmp_path: Path
) -> None:
    (tmp_path / "tuned.cache").write_bytes(b"nothing of ours")
    if changes is not None:
        cache_of(tmp_path, **changes)
    path = file_of(settings(forward=AOT), tmp_path)
    if spoil:
        spoil(path)
    with pytest.warns(UserWarning, match=words):
        autocompile.apply(net(), path)
    model = net()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the second time it is known
        autocompile.apply(model, path)
    torch.testing.assert_close(model(torch.ones(4, 4)), net()(torch.ones(4, 4)))
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("output", [[], ["-o", "tuned.py"]])
def test_a_cache_is_asked_for_together_with_a_file(
    output: list[str], work: Path
) -> None:
    error = CliRunner().invoke(app, ["export", *output, "--with-cache"]).exception
    assert isinstance(error, UsageError)
    assert error.hint == "autocompile export last -o tuned.json --with-cache"


def hits_and_misses(folder: Path, **variables: str) -> tuple[int, int]:
    """Of the program ``use.py`` in a fresh process with an empty cache."""
    own = {"TORCHINDUCTOR_CACHE_DIR": tempfile.mkdtemp(dir=folder), **variables}
    done = subprocess.run(
        [sys.executable, "-W", "error:the compiled code", "use.py"],
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    hits, misses = map(int, done.stdout.split()[-2:])
    return hits, misses


COUNTED = """
print(counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"])
"""
USE = f"""
import torch, autocompile
from torch._dynamo.utils import counters
from torch._inductor.cpp_builder import CppBuilder
from model import get_inputs, get_model

CppBuilder.build = None  # nothing has to be built
model, inputs = get_model(), get_inputs(4)
autocompile.apply(model.eval(), "tuned.json")
with torch.no_grad():
    model(inputs)
model = get_model()
optimizer = torch.optim.Adam(model.parameters())
model(inputs).sum().backward()
autocompile.apply(model, "tuned.json", "optimizer_step", optimizer=optimizer)
for _ in range(3):
    optimizer.step()
{COUNTED}"""


@pytest.mark.slow
def test_a_fresh_process_with_an_empty_cache_finds_every_phase(work: Path) -> None:
    (work / "model.py").write_text(MODEL)
    (work / "use.py").write_text(USE)
    made = settings(
        target=work / "model.py",
        forward=CompileConfig(),
        optimizer_step=CompileConfig(),
        train_step=CompileConfig(scope="step"),
    )
    told = export_with_cache(made, work / "tuned.json", 200.0)
    assert "wrote" in told[0] and len(told) == 2
    assert "train_step: it is a function of your own program" in told[1]
    hits, misses = hits_and_misses(work)
    assert (hits > 1, misses) == (True, 0)


@pytest.mark.slow
def test_a_backend_of_which_torch_keeps_nothing_is_left_out(work: Path) -> None:
    (work / "model.py").write_text(MODEL)
    made = settings(
        target=work / "model.py", forward=CompileConfig("onnxrt"), optimizer_step=FROZEN
    )
    told = export_with_cache(made, work / "tuned.json", 200.0)
    assert told == [
        f"wrote {work / 'tuned.json'}, and no cache: there is nothing to keep",
        "not in the cache: forward: torch keeps no compiled code of the backend onnxrt",
        "not in the cache: optimizer_step: frozen weights are built into the code, which is made "
        "anew",
    ]
    assert "cache" not in json.loads((work / "tuned.json").read_text("utf-8"))
    assert not (work / "tuned.cache").exists()


RL_TARGET = """
from ray.rllib.algorithms.ppo import PPOConfig

config = (
    PPOConfig()
    .environment("CartPole-v1")
    .env_runners(num_env_runners=0, num_envs_per_env_runner=4)
    .rl_module(model_config={"fcnet_hiddens": [8]})
)
"""
RL_USE = f"""
from torch._dynamo.utils import counters
from autocompile.rllib import tuned
from rl_target import config

config = tuned(config, "tuned.json")
runner = config.env_runner_cls(config=config, worker_index=0)
assert runner.tell_active()["settings"]["forward_exploration"]["graphs"] == 1
{COUNTED}"""


@pytest.mark.slow
def test_a_learner_finds_what_was_saved_of_whole_updates(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    from autocompile.rllib import tuned
    from autocompile.rllib.learner import LearnerUpdates, minibatch
    from autocompile.rllib.observations import module_spec, take_spaces

    (tmp_path / "rl_target.py").write_text(RL_TARGET)
    target = f"{tmp_path}/rl_target.py:config"
    made = settings(target=target, learner_update=CompileConfig(optimizer="fused"))
    result = saved(made, tmp_path)
    assert result.left_out == []
    assert result.graphs == 2  # forward and backward
    defined: dict[str, Any] = {}
    exec(RL_TARGET, defined)
    config = defined["config"]
    take_spaces(config)
    module = module_spec(config).build()
    with fresh_cache():
        torch._dynamo.reset()
        counters.clear()
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "the compiled code")
            updates = LearnerUpdates(tuned(config, file_of(made, tmp_path)), module)
            updates.update(minibatch(config, module, 4))
    found = counters["inductor"]
    assert (found["fxgraph_cache_hit"], found["fxgraph_cache_miss"]) == (2, 0), found


@pytest.mark.slow
def test_an_env_runner_finds_its_phase_also_on_the_one_thread_that_ray_gives_it(
    work: Path,
) -> None:
    pytest.importorskip("ray")
    (work / "rl_target.py").write_text(RL_TARGET)
    (work / "use.py").write_text(RL_USE)
    made = settings(
        target=f"{work}/rl_target.py:config", forward_exploration=CompileConfig()
    )
    export_with_cache(made, work / "tuned.json", 200.0)
    assert hits_and_misses(work) == hits_and_misses(work, OMP_NUM_THREADS="1") == (1, 0)
