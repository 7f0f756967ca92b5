"""What a cell of the matrix is: its target, its run of ``autocompile.tune``, and its program.

The program is what a user has: a loop over the model, the step or the algorithm, as a file of its
own would do it. It takes from autocompile nothing but the lines or the file that a run exports.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from axes import AXES, IN_RLLIB, OWN, TRAINING
from conftest import TARGETS
from pairs import Cell

import autocompile
from autocompile.store.record import Record

HERE = Path(__file__).parent
ROWS, LENGTHS = 4, (4, 7, 4, 2)  # of one call, and of several
Typed = Callable[..., subprocess.CompletedProcess[str]]
_ROUNDS, _CALLS = 7, 4
# After a change from one library to another, calls take twice as long for tens of milliseconds.
_LOOP_S = 0.3
_SHORT, _LONG = 3, 10**7  # calls of a program: compiling never pays, and costs nothing

# --- the target -----------------------------------------------------------------------------------

HEAD = """
import lying_backends
import nets
import torch

nets.register_backends()


def get_model():
    return nets.{net}()


def get_inputs(batch_size):
    return nets.rows(batch_size)
"""
CALLS = f"""

def get_calls():
    for rows in {LENGTHS}:
        yield get_inputs(rows)
"""
LOSS = """

def get_loss(output, inputs):
    return output.square().mean()
"""
OPTIMIZER = """

def get_optimizer(model):
    return {kind}(model.parameters(), lr=0.05, momentum=0.9)
"""
STEP = """

def get_step(model, optimizer):
    def step(inputs):
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
"""
INFERENCE_STEP = """

def get_step(model):
    def step(inputs):
        return model(inputs) * 2

    return step
"""
RLLIB = """
import lying_backends
import nets
from nets_rllib import ppo

nets.register_backends()

config = ppo(nets.{net})
"""


def write_target(cell: Cell, folder: Path) -> str:
    """Write the files of the cell's target; how it is named."""
    for path in (
        HERE / "nets.py",
        HERE / "nets_rllib.py",
        TARGETS / "lying_backends.py",
    ):
        shutil.copy(path, folder)
    phase, net = cell["phase"], "layers"
    if cell["memory"] == "channels_last":
        net = "convolutions"
    if cell["weights"] == "baked":
        net = "products"
    if phase in IN_RLLIB:
        (folder / "model.py").write_text(RLLIB.format(net=net))
        return "model.py:config"
    kind = "nets.Waiting" if phase == "optimizer_step" else "torch.optim.SGD"
    text = HEAD.format(net=net) + LOSS + OPTIMIZER.format(kind=kind)
    text += {"step": STEP, "inference_step": INFERENCE_STEP}.get(phase, "")
    text += CALLS if cell["calls"] == "get_calls" else ""
    (folder / "model.py").write_text(text)
    return "model.py"


def imported(folder: Path) -> Any:
    """The target's file as a module of this process."""
    for path in (str(HERE), str(TARGETS)):
        if path not in sys.path:
            sys.path.append(path)
    spec = importlib.util.spec_from_file_location("features_model", folder / "model.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- the run ------------------------------------------------------------------------------------


def backends(cell: Cell) -> tuple[str, ...]:
    """Those that are right."""
    if cell["weights"] == "frozen":
        return ("inductor",)
    if cell["weights"] == "baked":
        return ("onnxrt", "openvino_onnx") if cell["ending"] == "few" else ("onnxrt",)
    if cell["ending"] == "slower":
        return ("slower",)
    if cell["ending"] == "few":
        return ("aot_eager", "aot_eager_again", "aot_eager_once_more")
    return ("aot_eager",)


def liar(cell: Cell) -> str:
    """A backend that is wrong in the cell's phase."""
    steps = cell["phase"] == "optimizer_step" or cell["scope"] == "step"
    if steps and cell["phase"] != "inference_step" and cell["optimizer"] != "fused":
        return "steps_twice"
    if cell["phase"] in TRAINING:
        return "wrong_gradient"
    # A hundredth is what bfloat16 may be off by itself.
    by_numbers = {
        "float32": "bakes_weights",
        "precision": "off_by_a_hundredth",
        "autocast": "off_by_a_twentieth",
    }
    return by_numbers[cell["numbers"]]


def space(cell: Cell, names: tuple[str, ...]) -> autocompile.SearchSpace:
    """What is tried: the cell's values of each dimension, and no other."""
    is_lie = names == (liar(cell),)
    is_baked = cell["weights"] == "baked" and not is_lie
    has_own_size = cell["calls"] != "one" or cell["phase"] == "learner_update"
    is_frozen = cell["weights"] == "frozen" and not is_lie
    return autocompile.SearchSpace(
        backends=names,
        modes=("default", "max-autotune-no-cudagraphs")
        if is_frozen and cell["ending"] == "few"
        else ("default",),
        options=((("weights", "baked"),) if is_baked else (),),
        batch_sizes=None if has_own_size else (ROWS,),
        fullgraph=(False,),
        dynamic=(None,),
        scope=(cell["scope"],),
        freezing=(is_frozen,),
        memory_format=(cell["memory"],),
        optimizer=(cell["optimizer"],),
        threads=(None,),
        precision=("high" if cell["numbers"] == "precision" else "default",),
        autocast=("bfloat16" if cell["numbers"] == "autocast" else "none",),
    )


@contextlib.contextmanager
def interrupted(folder: Path) -> Iterator[None]:
    """Ctrl-C after the first trial whose result is in a folder, as a user presses it."""
    is_over = threading.Event()

    def press() -> None:
        while not is_over.wait(0.02):
            if [*folder.glob("**/result.json")]:
                os.kill(os.getpid(), signal.SIGINT)
                return

    # A program in the background is started with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=press)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        signal.signal(signal.SIGINT, before)


def tuned(
    cell: Cell,
    target: str,
    names: tuple[str, ...],
    limit_s: float,
    run_dir: str,
    typed: Typed,
) -> autocompile.Result:
    """A run over some backends, as the cell says."""
    limits = {
        "none": autocompile.Limits(),
        "latency": autocompile.Limits(latency_s=limit_s),
        "compile": autocompile.Limits(compile_s=1e-6),
    }
    if cell["suite"] == "yes":
        return _of_a_suite(cell, target, names, run_dir, typed)
    is_lie = names == (liar(cell),)
    more: dict[str, Any] = {
        "phases": (cell["phase"],),
        "space": space(cell, names),
        "effort": "full",
        "calls_per_update": None if cell["weights"] == "live" else 10**6,
        "sampler": cell["sampler"],
        # What lies keeps no limit, and neither need the other side.
        "limits": limits["none" if is_lie else cell["limit"]],
        "horizon": {"none": None, "long": _LONG, "short": _SHORT}[cell["horizon"]],
        "calls": "calls.json" if cell["calls"] == "recorded" else None,
        "run_dir": run_dir,
    }
    most = None
    if cell["ending"] == "few" and not is_lie:
        # Eager mode in its forms, and one that compiles; plain torch.compile() goes first.
        most = 2 + _has_other_eager(cell) + (cell["weights"] == "frozen")
    if cell["resume"] == "yes":
        with interrupted(Path(run_dir)):
            first = autocompile.tune(target, **more, progress="none")
        assert first.to_dict()["interrupted"]
        more["resume"] = True
        if most is not None:  # which is of both sessions here
            most -= sum(r.role == "search" and r.ok for r in first.trials)
    return autocompile.tune(target, **more, trials=most, progress="none")


def has_variants(cell: Cell) -> bool:
    """Whether eager mode is tried in a second form, which nearly ties with the first."""
    return _has_other_eager(cell) and cell["optimizer"] != "compiled"


def _has_other_eager(cell: Cell) -> bool:
    """Whether eager mode is tried in a second form, with whatever gain."""
    usual = {axis: AXES[axis][0] for axis in ("numbers", "optimizer", "memory")}
    return any(cell[axis] != value for axis, value in usual.items())


def _of_a_suite(
    cell: Cell, target: str, names: tuple[str, ...], run_dir: str, typed: Typed
) -> autocompile.Result:
    """The result of the one member of a suite."""
    Path("list.toml").write_text(f"models = [{target!r}]\n")
    folder = Path(f"suite-{run_dir}")
    wanted = {name: v for name, v in vars(space(cell, names)).items() if v is not None}
    words = [f"--phase={cell['phase']}", "--effort=full"]
    for name, values in wanted.items():
        flag = {
            "backends": "backend",
            "modes": "mode",
            "batch_sizes": "batch-size",
        }.get(name, name.replace("_", "-"))
        if name == "options":
            words.append("--option=" + ("weights=baked" if values[0] else "none"))
        elif name != "threads":  # of which a target with one thread has one value
            words.append(f"--{flag}={','.join(str(v).lower() for v in values)}")
    usual = (f"--run-dir={folder}", "--progress=none")
    stop = interrupted(folder) if cell["resume"] == "yes" else contextlib.nullcontext()
    with stop:
        done = typed("suite", "list.toml", *words, *usual)
    if cell["resume"] == "yes":
        assert done.returncode == autocompile.ExitCode.INTERRUPTED, done.stderr
        done = typed("suite", "--resume", *usual)
    assert done.returncode in (0, 1), done.stderr  # 1: nothing worked
    (run,) = (path.parent for path in folder.glob("*/run.json"))
    return autocompile.load(str(run))


# --- the program --------------------------------------------------------------------------------

TRAIN_STEP = """
def train_step(inputs):
    optimizer.zero_grad()
    loss = get_loss(model(inputs), inputs)
    loss.backward()
    optimizer.step()
    return loss.detach()
"""
Call = Callable[[], Any]


def code_of(cell: Cell, result: autocompile.Result, record: Record) -> str:
    """Write ``tuned.json``; the lines that put the setting of a trial into a program.

    A setting that is not the answer has no export: it stands in a file that is otherwise the
    export's.
    """
    phase, config = cell["phase"], record.config
    settings = json.loads(result.export("json"))
    choices = settings["phases"][phase]
    choice = next(c for c in choices if c["batch_size"] == record.batch_size)
    is_answer = result.best[phase] is record
    if not is_answer:
        choice["config"] = config.to_dict()
    Path("tuned.json").write_text(json.dumps(settings))
    if cell["export"] == "lines" and is_answer:
        return result.export("python")
    changed = "model"
    if config.scope == "step":
        changed = "train_step" if phase == "train_step" else "step"
    has_optimizer = phase in ("train_step", "step", "optimizer_step")
    more = ", optimizer=optimizer" if has_optimizer else ""
    text = f'autocompile.apply({changed}, "tuned.json", "{phase}"{more})'
    first = ""
    if config.scope == "step" and config.memory_format == "channels_last":
        first = "model.to(memory_format=torch.channels_last)\n"
    return f"import autocompile\n{first}{changed} = {text}"


def program(cell: Cell, folder: Path, code: str, stack: contextlib.ExitStack) -> Call:
    """What a user's program calls again and again, with the lines in it; the stack ends it."""
    module, phase = imported(folder), cell["phase"]
    if phase in IN_RLLIB:
        return _in_rllib(cell, module, code, stack)
    torch.manual_seed(0)
    model = module.get_model()
    names: dict[str, Any] = {
        "torch": torch,
        "model": model,
        "optimizer": module.get_optimizer(model),
        "get_loss": module.get_loss,
    }
    exec(TRAIN_STEP, names)
    if phase in OWN:
        names["step"] = _own_step(module, phase, names)
    exec(code, names)
    if phase == "optimizer_step":
        for weight in model.parameters():
            weight.grad = torch.randn_like(weight)
        step: Call = names.get("optimizer_step") or names["optimizer"].step
        return step
    if phase in OWN and cell["scope"] != "step":
        names["step"] = _own_step(module, phase, names)
    unit = {"forward": names["model"], "train_step": names["train_step"]}.get(
        phase, names.get("step")
    )
    lengths = (ROWS,) if cell["calls"] == "one" else LENGTHS
    inputs = [module.get_inputs(rows) for rows in lengths]
    trains = phase in ("train_step", "step")

    def call() -> None:
        with torch.set_grad_enabled(trains):
            for each in inputs:
                unit(each)

    return call


def _own_step(module: Any, phase: str, names: Mapping[str, Any]) -> Call:
    if phase == "inference_step":
        return module.get_step(names["model"])  # type: ignore[no-any-return]
    return module.get_step(names["model"], names["optimizer"])  # type: ignore[no-any-return]


def _in_rllib(cell: Cell, module: Any, code: str, stack: contextlib.ExitStack) -> Call:
    """A module's exploration, or updates of a learner, of an algorithm or of the module alone."""
    from nets_rllib import ACTIONS, SEEN, WIDTH
    from ray.rllib.core import DEFAULT_MODULE_ID
    from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch

    config = module.config.copy(copy_frozen=False)
    seen = torch.rand(ROWS, WIDTH)
    if cell["export"] != "rllib":
        spec = config.get_rl_module_spec(spaces={DEFAULT_MODULE_ID: (SEEN, ACTIONS)})
        spec.observation_space, spec.action_space = SEEN, ACTIONS
        names = {"torch": torch, "model": spec.build(), "optimizer": None}
        exec(code, names)
        model = names["model"]
    else:
        if code:
            from autocompile.rllib import tuned as tuned_config

            config = tuned_config(config, "tuned.json")
        algorithm = config.build_algo()
        stack.callback(algorithm.stop)
        model = algorithm.env_runner.module
    if cell["phase"] == "forward_exploration":

        def explore() -> None:
            with torch.no_grad():
                model.forward_exploration({"obs": seen}, t=0)

        return explore
    learner = algorithm.learner_group._learner
    columns = {
        "obs": seen,
        "actions": torch.zeros(ROWS, dtype=torch.int64),
        "action_logp": torch.zeros(ROWS),
        "action_dist_inputs": torch.zeros(ROWS, 3),
        "advantages": torch.rand(ROWS),
        "value_targets": torch.rand(ROWS),
    }
    batch = MultiAgentBatch({"default_policy": SampleBatch(columns)}, ROWS)
    return lambda: learner.update(batch=batch, num_epochs=1, minibatch_size=ROWS)


def seconds(call: Call) -> float:
    """Seconds of a call in a loop that is long enough for the threads of other libraries to rest."""
    began, calls = time.perf_counter(), 0
    while calls < _CALLS or time.perf_counter() - began < _LOOP_S:
        call()
        calls += 1
    return (time.perf_counter() - began) / calls


def times_as_fast(eager: Call, other: Call) -> float:
    """How many times as fast the second is, in loops that take turns."""
    for call in (eager, other):
        seconds(call)
    ratios = [seconds(eager) / seconds(other) for _ in range(_ROUNDS)]
    return statistics.median(ratios)


def record_calls(cell: Cell, folder: Path) -> None:
    """Write ``calls.json``, as ``autocompile.record`` does of a program."""
    module = imported(folder)
    model = module.get_model()
    with autocompile.record(model, "calls.json"), torch.no_grad():
        for rows in LENGTHS:
            model(module.get_inputs(rows))
