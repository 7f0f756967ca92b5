"""What is exported, run against the real stacks, each in a process forked from a warm python."""

from __future__ import annotations

import copy
import importlib
import importlib.metadata
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import ROOT
from pasting import programs_in

from autocompile import export as exporting
from autocompile.export.choices import facts_of
from autocompile.export.lines import Choice, of_optimizer
from autocompile.export.python import cell
from autocompile.export.stacks import ACCELERATE_BACKENDS, ACCELERATE_READ
from autocompile.runtime.optimizers import set_implementation
from autocompile.settings.config import CompileConfig
from autocompile.settings.dimensions import OPTIMIZERS
from autocompile.store.report import Report as TypedReport

Report = dict[str, Any]

SAMPLE = json.loads(
    (Path(__file__).parents[1] / "data" / "report.json").read_text("utf-8")
)
SETTING = {
    **SAMPLE["phases"]["optimizer_step"]["answer"]["best"]["config"],
    "backend": "aot_eager",
}
KEEP_EAGER = SAMPLE["phases"]["optimizer_step"]

MODEL = """
import torch

def get_model():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
"""
CUSTOM_BACKEND = """
from torch._dynamo import register_backend

@register_backend
def counting(graph, inputs):
    print("counting backend called")
    return graph.forward
"""
RL_CONFIG = """
from gymnasium.spaces import Box, Discrete
from ray.rllib.algorithms.ppo import PPOConfig

config = PPOConfig().environment(observation_space=Box(-1, 1, (4,)), action_space=Discrete(2))
"""
COUNT = """
from torch._dynamo.utils import counters
print("graphs", counters["stats"]["unique_graphs"])
"""


# A python that has imported already what scripts import, and forks for each of them.
WARM = """
import json, os, sys, traceback, types
import torch, torch._dynamo, torch._functorch.aot_autograd, torch._inductor.compile_fx
import accelerate, pytorch_lightning
from transformers import Trainer, TrainingArguments
import ray.rllib.algorithms.ppo

def run(text, folder, environment, out, err):
    for path, number in ((os.devnull, 0), (out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
    os.chdir(folder)
    os.environ.update(environment)
    sys.argv = ["-"]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(text, "<stdin>", "exec"), vars(main))

for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        code = 0
        try:
            run(*json.loads(line))
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def warm() -> Iterator[subprocess.Popen[str]]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("ACCELERATE_")}
    clean.pop("PYTHONPATH", None)
    with subprocess.Popen(
        [sys.executable, "-c", WARM],
        env={**clean, "CUDA_VISIBLE_DEVICES": "", "TORCHINDUCTOR_COMPILE_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.stdin.close()  # type: ignore[union-attr]


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(warm: subprocess.Popen[str], tmp_path: Path) -> Run:
    """Runs a script as one that is piped to python, without seconds of imports."""

    def forked(
        text: str, folder: Path, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        out, err = tmp_path / "stdout", tmp_path / "stderr"
        asked = [text, str(folder), environment, str(out), str(err)]
        warm.stdin.write(json.dumps(asked) + "\n")  # type: ignore[union-attr]
        warm.stdin.flush()  # type: ignore[union-attr]
        code = int(warm.stdout.readline())  # type: ignore[union-attr]
        done = subprocess.CompletedProcess(
            ["-"], code, out.read_text(), err.read_text()
        )
        out.unlink(), err.unlink()
        assert done.returncode == 0, done.stderr
        return done

    return forked


def typed(report: Report) -> TypedReport:
    found: TypedReport = TypedReport.from_dict(report)
    return found


def export(report: Report, to: str) -> str:
    return exporting.export(typed(report), to)


def faster(**config: Any) -> Report:
    """A phase in which one cheap setting won."""
    phase: Report = copy.deepcopy(SAMPLE["phases"]["forward_exploration"])
    phase["answer"]["best"]["config"] = {**SETTING, **config}
    return phase


def plain(folder: Path, phases: Report, source: str = MODEL) -> Report:
    """The report of a file with ``get_model``, which is written too."""
    (folder / "model.py").write_text(source)
    report: Report = copy.deepcopy(SAMPLE)
    adam = {"class": "Adam", "arguments": {"lr": 0.01}, "lr": 0.01}
    report["target"] = {"spec": "model.py", "kind": "functions", "choices": {}}
    report["target"]["optimizer"] = adam
    report["phases"] = phases
    return report


def owning(report: Report) -> Report:
    """The same of a target that names its optimizer."""
    report["target"]["choices"] = {"optimizer": "get_optimizer() of the target"}
    return report


def rl(folder: Path, phases: Report) -> Report:
    """The report of a file with a PPOConfig over four numbers, which is written too."""
    (folder / "ppo.py").write_text(RL_CONFIG)
    report: Report = copy.deepcopy(SAMPLE)
    report["target"].update(spec="ppo.py:config", own_batch_size={})
    report["phases"] = phases
    return report


# What a user's program has before the lines.
BEFORE = """
import sys
import torch

sys.path.insert(0, ".")
from model import get_model

model = get_model()
"""
RL_BEFORE = """
import torch
from ppo import config

model = config.get_rl_module_spec().build()
optimizer = torch.optim.Adam(model.parameters())

def train_step(inputs):
    optimizer.zero_grad()
    sum(x.sum() for x in model.forward_train(inputs).values()).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("phase", "call"),
    [
        ("forward", "model(torch.zeros(2, 4))"),
        ("train_step", "train_step((torch.zeros(2, 4),))"),
        (
            "optimizer_step",
            "model[0].weight.grad = torch.ones(4, 4); before = model[0].weight.clone(); "
            "optimizer_step(); assert not torch.equal(before, model[0].weight)",
        ),
    ],
)
def test_each_phase_of_a_module_is_compiled(
    phase: str, call: str, tmp_path: Path, run: Run
) -> None:
    text = f"{BEFORE}{USERS}{export(plain(tmp_path, {phase: faster()}), 'python')}"
    lines = run(f"{text}\n{call}\n{COUNT}", tmp_path).stdout.splitlines()
    assert int(lines[-1].split()[1]) >= 1


USERS = """
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

def train_step(inputs):
    optimizer.zero_grad()
    model(*inputs).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("phase", "setting", "call", "said"),
    [
        ("forward_exploration", {"dynamic": False}, "", "graphs 1"),
        # As RLlib calls it: nobody has entered no_grad outside, and the backend refuses gradients.
        ("forward_exploration", {"backend": "onnxrt"}, "", "graphs 1"),
        pytest.param("forward_inference", {}, "", "graphs 1", marks=pytest.mark.slow),
        pytest.param("forward_train", {}, "", "graphs 1", marks=pytest.mark.slow),
        ("train_step", {}, 'train_step({"obs": torch.ones(2, 4)})', "graphs"),
    ],
)
def test_each_phase_of_an_rlmodule_is_compiled(
    phase: str, setting: Report, call: str, said: str, tmp_path: Path, run: Run
) -> None:
    lines = with_file(rl(tmp_path, {phase: faster(**setting)}), "python", tmp_path)
    text = f"{RL_BEFORE}{lines}"
    call = call or f'assert model.{phase}({{"obs": torch.zeros(2, 4)}})'
    last = run(f"{text}\n{call}\n{COUNT}", tmp_path).stdout.splitlines()[-1]
    assert last.startswith(said) and last != "graphs 0"


# An export of every two phases of an RLModule, each in a program of its own.
RL_PAIRS = """
import json, torch
from ppo import config
from torch._dynamo.utils import counters

def calls(model, optimizer, names):
    def train_step(inputs):
        optimizer.zero_grad()
        sum(x.sum() for x in model.forward_train(inputs).values()).backward()
        optimizer.step()
    torch.manual_seed(1)
    inputs = {"obs": torch.ones(2, 4)}
    for name in names:
        call = getattr(model, name, None)
        if name == "optimizer_step":
            for p in model.parameters():
                p.grad = torch.ones_like(p)
            optimizer.step()
        elif name == "train_step":
            train_step(inputs)
        else:
            call(inputs)
    return [p.detach().clone() for p in model.parameters()]

def program(code):
    torch.manual_seed(0)
    model = config.get_rl_module_spec().build()
    names = {"torch": torch, "model": model}
    names["optimizer"] = torch.optim.Adam(model.parameters(), lr=0.01)
    exec(code, names)
    return names["model"], names["optimizer"]

for names, codes, settings in json.load(open("exports.json")):
    eager = calls(*program(""), names)
    open("tuned.json", "w").write(settings)
    for code in codes:
        torch._dynamo.reset(), counters.clear()
        model, optimizer = program(code)
        for ours, eagers in zip(calls(model, optimizer, names), eager, strict=True):
            torch.testing.assert_close(ours, eagers)
        assert len(list(model.parameters())) == len(eager) and model.state_dict()
        model.train().eval()
        print(*names, counters["stats"]["unique_graphs"])
"""
RL_SETTINGS = {
    "forward_exploration": {},
    "forward_inference": {"fullgraph": True},
    "forward_train": {},
    "train_step": {"scope": "model", "fullgraph": True, "optimizer": "fused"},
    "optimizer_step": {"backend": "eager", "optimizer": "foreach"},
}


def test_the_whole_export_of_two_phases_of_an_rlmodule_runs(
    tmp_path: Path, run: Run
) -> None:
    exports = []
    for pair in itertools.combinations(RL_SETTINGS, 2):
        phases = {name: faster(**RL_SETTINGS[name]) for name in pair}
        report = rl(tmp_path, phases)
        codes = programs_in(export(report, "python"))
        exports.append((pair, codes, export(report, "json")))
    alternatives = {pair for pair, codes, _ in exports if len(codes) == 2}
    assert alternatives == {
        ("forward_train", "train_step"),
        ("train_step", "optimizer_step"),
    }
    (tmp_path / "exports.json").write_text(json.dumps(exports))
    text = f"import sys\nsys.path[:0] = [{str(ROOT)!r}, '.']\n{RL_PAIRS}"
    lines = run(text, tmp_path).stdout.splitlines()
    assert len(lines) == 12
    uncompiled = [line for line in lines if line.endswith(" 0")]
    assert uncompiled == ["train_step optimizer_step 0"], (
        "foreach alone compiles nothing"
    )


WIDE = """
import torch

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Conv2d(3, 3, 3, padding=1)
        self.outer = torch.nn.Conv2d(3, 3, 1)

    def forward(self, x):
        return x + self.outer(torch.relu(self.inner(x)))

def get_model():
    torch.manual_seed(0)  # of others every ReLU may be dead, and a step change nothing
    return torch.nn.Sequential(Block(), Block(), Block())
"""
X = "torch.ones(2, 3, 8, 8)"
LAID_OUT = f"""
model({X})
print(torch.get_num_threads(),
      model[0].inner.weight.is_contiguous(memory_format=torch.channels_last))
"""
LOWERED = f"""
off = (model({X}) - model._orig_mod({X})).abs().max()
print(bool(1e-5 < off < 1), torch.get_float32_matmul_precision())
"""
FOLLOWS = """
x = torch.randn(64, 4)
with torch.no_grad():
    before = model(x)
    model[0].weight.mul_(2.0)
    print(torch.equal(before, model(x)), torch.allclose(model(x), model._call_impl(x), atol=1e-5))
"""


@pytest.mark.parametrize(
    ("setting", "source", "look", "said"),
    [
        (None, MODEL, "model(torch.zeros(2, 4))", ["graphs 0"]),
        (
            {"backend": "counting"},  # which the target registers
            CUSTOM_BACKEND + MODEL,
            "model(torch.zeros(2, 4))",
            ["counting backend called", "graphs 1"],
        ),
        (
            {"backend": "eager", "memory_format": "channels_last", "threads": 1},
            WIDE,
            LAID_OUT,
            ["1 True", "graphs 0"],
        ),
        (
            {"scope": "regional"},
            WIDE,
            f"with torch.no_grad(): model({X})",
            ["graphs 1"],
        ),
        (
            {
                "autocast": "bfloat16",
                "precision": "high",
            },
            WIDE,
            LOWERED,
            ["True high", "graphs 1"],
        ),
        ({"backend": "inductor", "freezing": True}, MODEL, FOLLOWS, ["False True"]),
        (
            {"dynamic": True},
            MODEL,
            "for n in (5, 9, 2): model(torch.zeros(n, 4))",
            ["graphs 1"],
        ),
        (
            {
                "dynamic": False,
                "recompile_limit": 16,
            },  # the same with torch's limit is 8
            MODEL,
            "for n in range(2, 14): model(torch.zeros(n, 4))",
            ["graphs 12"],
        ),
    ],
)
def test_the_forward_pass_runs_with_its_setting(
    setting: Report | None,
    source: str,
    look: str,
    said: list[str],
    tmp_path: Path,
    run: Run,
) -> None:
    phase = KEEP_EAGER if setting is None else faster(**setting)
    text = with_file(plain(tmp_path, {"forward": phase}, source), "python", tmp_path)
    text = f"{BEFORE}model.eval()\n{text}"
    lines = run(f"{text}\n{look}\n{COUNT}", tmp_path).stdout.splitlines()
    found = lines if said[-1].startswith("graphs") else lines[:-1]
    assert found[-len(said) :] == said


def test_another_torch_is_refused_than_it_was_measured_with(
    tmp_path: Path, run: Run
) -> None:
    report = plain(tmp_path, {"forward": faster(environment="other")})
    there = {"torch": torch.__version__, "python_path": "/somewhere/bin/python"}
    report["environments"] = {"other": there}
    run(f"{BEFORE}{export(report, 'python')}", tmp_path)
    there["torch"] = "2.8.0"
    with pytest.raises(
        AssertionError, match=r"torch 2\.8\.0: run it with /somewhere/bin/python"
    ):
        exec(export(report, "python"), {"torch": torch})


@pytest.mark.parametrize("how", ["made", "changed"])
@pytest.mark.parametrize("name", ["fused", "tensor_lr"])
def test_the_optimizer_is_the_users_own_and_steps_as_the_one_that_won(
    name: str, how: str, tmp_path: Path, run: Run
) -> None:
    phase = faster(backend="eager", optimizer=name)
    report = owning(plain(tmp_path, {"optimizer_step": phase}, WIDE))
    if how == "changed":
        report["target"]["optimizer"] = {}
    look = (
        f"model({X}).sum().backward(); before = model[0].outer.weight.clone(); optimizer.step()\n"
        "group = optimizer.param_groups[0]\nprint(torch.equal(before, model[0].outer.weight), "
        "group['fused'], type(group['lr']).__name__, round(float(group['lr']), 4))"
    )
    text = f"{BEFORE}optimizer = torch.optim.SGD(model.parameters())\n{export(report, 'python')}"
    last = run(f"{text}\n{look}", tmp_path).stdout.splitlines()[-1]
    lr = {"made": "0.01", "changed": "0.001"}[how]
    assert (
        last
        == {"fused": f"False True float {lr}", "tensor_lr": f"False None Tensor {lr}"}[
            name
        ]
    )


@pytest.mark.parametrize(
    "own", [{}, {"foreach": False}, {"fused": True}, {"capturable": True}]
)
@pytest.mark.parametrize(
    "name", [n for n in OPTIMIZERS if n not in ("default", "compiled")]
)
def test_each_implementation_is_exported_as_it_was_measured(
    name: str, own: dict[str, Any]
) -> None:
    """Also where the user's own optimizer already has another one."""
    weights = [torch.nn.Parameter(torch.zeros(2))]

    def steps_by(optimizer: torch.optim.Optimizer) -> tuple[Any, ...]:
        (group,) = optimizer.param_groups
        fused = bool(group["fused"])
        return (
            fused,
            not fused and group["foreach"],
            group["capturable"],
            type(group["lr"]),
        )

    measured = torch.optim.Adam(weights, **own)
    set_implementation(measured, name)
    made = {"class": "Adam", "arguments": own, "lr": 0.001}
    config, space = CompileConfig("eager", optimizer=name), dict[str, Any]()
    target = {
        "spec": "net.py",
        "choices": {"optimizer": "get_optimizer() of the target"},
    }
    report = {"target": target, "environment": {"device": "cpu"}, "phases": {}}
    for how in (made, {}):
        report["target"] = {**target, "optimizer": how}
        model = SimpleNamespace(parameters=lambda: weights)
        space |= {
            "torch": torch,
            "model": model,
            "optimizer": torch.optim.Adam(weights, **own),
        }
        (line,) = of_optimizer("optimizer_step", config, facts_of(typed(report)))
        exec(line.code, space)
        assert steps_by(space["optimizer"]) == steps_by(measured)
    if name == "tensor_lr":  # on a GPU the tensor is there too, in a table as well
        report["environment"] = {"device": "cuda:0"}
        facts = facts_of(typed(report))
        row = cell(Choice("optimizer_step", "faster", config, ""), facts)
        (line,) = of_optimizer("optimizer_step", config, facts)
        assert 'device="cuda:0"' in row and 'device="cuda:0"' in line.code


FUSED = {"optimizer_step": faster(backend="eager", optimizer="fused")}


def test_accelerate_trains_with_all_of_the_setting(tmp_path: Path, run: Run) -> None:
    own = faster(memory_format="channels_last", fullgraph=True)
    text = export(
        owning(plain(tmp_path, {"forward": own, **FUSED}, WIDE)), "accelerate"
    )
    look = f"""
accelerator.backward(model({X}).sum())
optimizer.step()
last = next(model.parameters()).is_contiguous(memory_format=torch.channels_last)
print(plugin.to_kwargs(), last, optimizer.param_groups[0]["fused"])
"""
    lines = run(f"{BEFORE}{text}{look}{COUNT}", tmp_path).stdout.splitlines()
    assert lines == [
        "{'backend': 'aot_eager', 'fullgraph': True} True True",
        "graphs 1",
    ]


def test_accelerate_keeps_the_setting_against_the_launchers_environment(
    tmp_path: Path, run: Run
) -> None:
    report = plain(
        tmp_path, {"forward": faster(backend="inductor", mode="max-autotune")}
    )
    launcher = {
        "ACCELERATE_DYNAMO_BACKEND": "EAGER",
        "ACCELERATE_DYNAMO_MODE": "reduce-overhead",
        "ACCELERATE_DYNAMO_USE_FULLGRAPH": "True",
        "ACCELERATE_DYNAMO_USE_DYNAMIC": "False",
        "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION": "True",
    }
    text = f"{BEFORE}{export(report, 'accelerate')}\nprint(plugin.to_kwargs())"
    said = run(text, tmp_path, **launcher).stdout
    assert said == "{'backend': 'inductor', 'mode': 'max-autotune'}\n"


LISTED = """
import torch

class Stack(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x

def get_model():
    return Stack()
"""


@pytest.mark.parametrize(
    ("setting", "source", "said"),
    [
        ({"scope": "regional"}, LISTED, "True no"),
        ({"autocast": "bfloat16"}, MODEL, "False bf16"),
        ({"dynamic": False}, MODEL, "False no"),
        (None, MODEL, "False no"),
    ],
)
def test_accelerate_carries_what_it_has_a_line_for(
    setting: Report | None, source: str, said: str, tmp_path: Path, run: Run
) -> None:
    phase = KEEP_EAGER if setting is None else faster(**setting)
    text = export(plain(tmp_path, {"forward": phase}, source), "accelerate")
    look = """
model(torch.zeros(2, 4))
print(plugin.use_regional_compilation, accelerator.mixed_precision)
"""
    lines = run(f"{BEFORE}{text}{look}{COUNT}", tmp_path).stdout.splitlines()
    assert lines[-2] == said and (lines[-1] == "graphs 0") == (setting is None)


def test_the_list_of_accelerates_backends_is_the_installed_one() -> None:
    installed = importlib.import_module("accelerate.utils").DynamoBackend.__members__
    version = importlib.metadata.version("accelerate")
    assert tuple(installed) == ACCELERATE_BACKENDS, (
        f"read from {ACCELERATE_READ}, installed {version}"
    )


def with_file(report: Report, to: str, folder: Path) -> str:
    """An export that reads a file, which is written too; autocompile can be imported."""
    (folder / "tuned.json").write_text(export(report, "json"))
    return f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{export(report, to)}"


WITH_LOSS = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Conv2d(3, 3, 3)

    def forward(self, x, labels=None):
        return {"loss": self.inner(x).square().mean()}

def get_model():
    return Net()
"""
ARGS = """
from transformers import TrainingArguments

args = TrainingArguments("out", max_steps=2, save_strategy="no", disable_tqdm=True, report_to=[])
"""
TRAIN = """
trainer.train_dataset = [{"x": torch.ones(3, 8, 8), "labels": 0}] * 16
trainer.train()
last = model.inner.weight.is_contiguous(memory_format=torch.channels_last)
print(trainer.optimizer.param_groups[0]["fused"], last, model._compiled_call_impl.calls)
"""


def test_the_trainer_trains_with_all_of_the_setting(tmp_path: Path, run: Run) -> None:
    phase = faster(memory_format="channels_last", fullgraph=True)
    report = plain(tmp_path, {"forward": phase, **FUSED}, WITH_LOSS)
    text = with_file(report, "transformers", tmp_path)
    lines = run(f"{BEFORE}{ARGS}{text}{TRAIN}{COUNT}", tmp_path).stdout.splitlines()
    assert lines[-2:] == ["True True 2", "graphs 1"]


def test_the_lightning_trainer_has_the_callback(tmp_path: Path, run: Run) -> None:
    """What it does in a training is held by tests/runtime/test_trainers.py."""
    text = with_file(plain(tmp_path, {"forward": faster()}), "lightning", tmp_path)
    look = "print([type(each).__name__ for each in trainer.callbacks])"
    assert "'TunedCallback'" in run(f"{BEFORE}{text}{look}", tmp_path).stdout


def test_the_rllib_script_gives_a_config_whose_runners_compile(
    tmp_path: Path, run: Run
) -> None:
    report = rl(tmp_path, {"forward_exploration": faster(), "train_step": faster()})
    before = """
from ray.rllib.algorithms.ppo import PPOConfig

config = PPOConfig().environment("CartPole-v1").env_runners(num_env_runners=0)
"""
    look = """
import warnings

assert type(config).__name__ == "PPOConfig"
warnings.simplefilter("ignore")  # of another machine
runner = config.env_runner_cls(config=config)
print(runner.tell_active()["settings"]["forward_exploration"]["graphs"])
"""
    text = with_file(report, "rllib", tmp_path)
    assert run(before + text + look, tmp_path).stdout == "1\n"
