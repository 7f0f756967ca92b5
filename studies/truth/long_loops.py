"""Tune networks as a user does, then time what was found at length with code of its own.

    python studies/truth/long_loops.py --to studies/truth/long_loops_cpu.json    # 40 minutes
    python studies/truth/long_loops.py --device cuda --to long_loops_cuda.json   # 30 minutes
    python studies/truth/long_loops.py --show studies/truth/long_loops_*.json    # measures nothing

Of each network one tune in a process of its own. Then three fresh processes build the network
twice, apply the setting to one of the two, and time both in turns: loops of half a second and more,
each after as long a lead as a quarter of it. The truth is the median of the processes' medians.
Nothing is taken from autocompile but the report, and its backends where the setting names one.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import inspect
import json
import os
import platform
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

STUDIES = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(STUDIES))
from by_hand import rebuilt  # noqa: E402

LOOP_S, LEAD_S = 0.5, 0.125
WARM_S = {"cpu": 1.0, "cuda": 0.5}
ROUNDS, PROCESSES = 8, 3
RUNS_APART = 0.035  # _RUNS_APART of autocompile that made the intervals
READY_S = 240.0  # of the three processes of one setting, to compile and be timed
# glibc keeps what is freed, as trials and exported code have it: by itself it may give memory back
# after each call, and eager convolutions then take twice as long (docs/use.md).
KEEP_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": str(2**28),
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
}
NOT_APPLIED = {"autocast": "none", "precision": "default"}

ON_CPU = {
    "search/convnet": "forward",
    "search/depthwise": "forward",
    "search/encoder": "forward",
    "search/decoder": "forward",
    "search/resnet": "forward",
    "search/autoencoder": "forward",
    "search/tagger": "forward",
    "search/ppo_cnn": "forward_exploration",
    "search/train_convnet": "train_step",
    "search/train_encoder": "train_step",
    "search/adam": "optimizer_step",
    "search/sgd": "optimizer_step",
    "search/adamw": "optimizer_step",
    "search/ppo_mlp": "forward_exploration",
    "search/ppo_lstm": "forward_exploration",
}
ON_GPU = {
    "gpu/ppo_cnn": "forward",
    "gpu/ppo_adam": "optimizer_step",
    "gpu/convnext_forward": "forward",
    "gpu/llama_decode": "forward",
    "search/decoder": "forward",
    "search/resnet": "forward",
    "search/train_encoder": "train_step",
    "search/train_convnet": "train_step",
    "search/encoder": "forward",
    "search/adam": "optimizer_step",
    "gpu/robot_step": "train_step",
    "gpu/vit_forward": "forward",
    "gpu/whisper_encoder": "forward",
}
NETWORKS = {"cpu": ON_CPU, "cuda": ON_GPU}


# --- in one of the three processes ---------------------------------------------------------------


def loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def arguments(config: dict[str, Any]) -> dict[str, Any]:
    """What ``torch.compile`` is given."""
    given = {
        "backend": config["backend"],
        "mode": None if config["mode"] == "default" else config["mode"],
        "options": dict(config["options"]) or None,
        "dynamic": config["dynamic"],
        "fullgraph": config["fullgraph"],
    }
    return {name: value for name, value in given.items() if value is not None}


def repeated(model: Any) -> list[Any]:
    """The modules of the first list of three and more that are of one class."""
    from torch import nn

    for module in model.modules():
        is_list = isinstance(module, (nn.ModuleList, nn.Sequential))
        if is_list and len(module) > 2 and len({type(each) for each in module}) == 1:
            return list(module)
    raise SystemExit("no blocks")


def made(
    path: Path, phase: str, batch_size: int | None, device: str, config: Any
) -> Any:
    """The call that is timed; uncompiled where ``config`` is None."""
    import torch

    compiled = config is not None and config["backend"] != "eager"
    scope = config["scope"] if compiled else ""
    kind = config["optimizer"] if config else "default"

    def turned(function: Any, at: str) -> Any:
        return torch.compile(function, **arguments(config)) if scope == at else function

    torch.manual_seed(0)
    sys.path.insert(0, str(path.parent))  # some files import others
    target = loaded(path)
    if phase == "forward_exploration":
        net = target.config.get_rl_module_spec(inference_only=True).build().to(device)
        net._forward_exploration = turned(net._forward_exploration, "model")
        shape = (batch_size, *target.config.observation_space.shape)
        batch = {"obs": torch.empty(shape, device=device).uniform_(-1, 1)}
        return lambda: net.forward_exploration(batch)

    model = target.get_model().to(device).train(phase != "forward")
    takes_size = inspect.signature(target.get_inputs).parameters
    given = target.get_inputs(*([batch_size or 1] if takes_size else []))
    last = config is not None and config["memory_format"] == "channels_last"
    if last:
        model = model.to(memory_format=torch.channels_last)

    def placed(tensor: Any) -> Any:
        tensor = tensor.to(device)
        if last and tensor.dim() == 4:
            tensor = tensor.to(memory_format=torch.channels_last)
        return tensor

    if scope == "regional":
        for block in repeated(model):
            block.compile(**arguments(config))
    called = turned(model, "model")
    if isinstance(given, dict):
        inputs: Any = {name: placed(tensor) for name, tensor in given.items()}
        run = lambda: called(**inputs)  # noqa: E731
    else:
        inputs = tuple(placed(tensor) for tensor in given)
        run = lambda: called(*inputs)  # noqa: E731
    if phase == "forward":
        return run
    optimizer = rebuilt(target.get_optimizer(model), kind)
    if phase == "optimizer_step":
        for parameter in model.parameters():
            parameter.grad = 1e-3 * torch.randn_like(parameter)

        def optimize() -> None:
            optimizer.step()

        return (
            turned(optimize, "model") if scope == "model" else turned(optimize, "step")
        )
    step = (
        torch.compile(lambda: optimizer.step())
        if kind == "compiled"
        else optimizer.step
    )

    def train() -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = target.get_loss(run(), inputs)
        loss.backward()
        step()
        return loss.detach()

    return turned(train, "step")


def one(work: dict[str, Any]) -> dict[str, Any]:
    """Compile beside the others, then time while they wait."""
    import torch

    config, device = work["config"], work["device"]
    threads = {"eager": torch.get_num_threads()}
    threads["setting"] = config["threads"] or threads["eager"]
    if config["freezing"]:
        import torch._inductor.config as inductor

        inductor.freezing = True
    if config["backend"] in ("onnxrt", "openvino_onnx"):
        import autocompile  # noqa: F401
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    path = Path(work["path"])
    sides = {
        name: made(path, work["phase"], work["batch_size"], device, setting)
        for name, setting in (("eager", None), ("setting", config))
    }
    trains = work["phase"] not in ("forward", "forward_exploration")

    def loop(name: str, calls: int) -> float:
        """Seconds of a call."""
        call: Callable[[], Any] = sides[name]
        torch.set_num_threads(threads[name])
        with torch.set_grad_enabled(trains):
            wait()
            began = time.perf_counter()
            for _ in range(calls):
                call()
            wait()
        return (time.perf_counter() - began) / calls

    for name in sides:
        loop(name, 3)
    print("ready", flush=True)
    sys.stdin.readline()  # until the others are ready, and those before have been timed
    calls, leads = {}, {}
    for name in sides:
        end = time.perf_counter() + WARM_S[device]
        while time.perf_counter() < end:
            call_s = loop(name, 5)
        calls[name] = max(2, round(LOOP_S / call_s) + 1)
        leads[name] = max(1, round(LEAD_S / call_s))
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(ROUNDS):
        for name in list(sides)[:: 1 if turn % 2 else -1]:
            loop(name, leads[name])
            times[name].append(float(f"{loop(name, calls[name]):.5g}"))
    return {"calls": calls, "call_s": times}


# --- around them ---------------------------------------------------------------------------------


def tuned(
    path: Path, phase: str, device: str, budget: str, folder: Path
) -> dict[str, Any]:
    """One tune, as typed; what its report answers."""
    command = [sys.executable, "-m", "autocompile", "tune", str(path)]
    command += ["--phase", phase, "--device", device, "--budget", budget]
    command += ["--run-dir", str(folder), "--progress", "none"]
    began = time.monotonic()
    ended = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    found: dict[str, Any] = {"wall_s": round(time.monotonic() - began, 1)}
    if not (folder / "report.json").exists():
        return found | {"error": (ended.stdout + ended.stderr)[-2000:]}
    report = json.loads((folder / "report.json").read_text())
    answer = report["phases"][phase]["answer"]
    best = answer.get("best") or {}
    return found | {
        "verdict": answer["verdict"],
        "word": answer["confidence"],
        "batch_size": answer["batch_size"],
        "config": best.get("config"),
        "figure": best.get("speedup"),
        "sets": best.get("confirmed_processes"),
        "call_s": best.get("call_s"),
        "eager_call_s": best.get("eager_call_s"),
        "counts_eager": True,  # in a GPU's interval; recorded runs without it are older
        "eager_s_of_processes": sorted(
            {
                trial["eager_call_s"]
                for trial in report["phases"][phase]["trials"]
                if trial["outcome"] == "ok"
                and trial["batch_size"] == answer["batch_size"]
            }
        ),
    }


def timed(path: Path, phase: str, device: str, found: dict[str, Any]) -> list[Any]:
    """A row of each of the three processes. Where cores are few they compile one by one."""
    scratch = Path(tempfile.mkdtemp(prefix="long-"))
    work = {"path": str(path), "phase": phase, "device": device}
    work |= {name: found[name] for name in ("batch_size", "config")}
    end = time.monotonic() + READY_S
    begun: list[subprocess.Popen[str]] = []
    for number in range(PROCESSES):
        cache = scratch / f"cache{number}"
        environment = os.environ | KEEP_MEMORY
        environment |= {"TORCHINDUCTOR_CACHE_DIR": str(cache)}
        environment |= {"TRITON_CACHE_DIR": str(cache / "triton")}
        begun.append(
            subprocess.Popen(
                [sys.executable, __file__, "--one", json.dumps(work)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=(scratch / f"errors{number}").open("w"),
                text=True,
                env=environment,
            )
        )
        if device == "cpu":
            said(begun[-1], end)
    if device == "cuda":
        for process in begun:
            said(process, end)
    rows: list[Any] = []
    for number, process in enumerate(begun):
        with contextlib.suppress(BrokenPipeError):
            print("go", file=process.stdin, flush=True)
        line = said(process, end)
        errors = (scratch / f"errors{number}").read_text()[-1500:]
        rows.append(json.loads(line) if line.startswith("{") else {"error": errors})
        process.kill()
        process.wait()
    shutil.rmtree(scratch, ignore_errors=True)
    return rows


def said(process: subprocess.Popen[str], end: float) -> str:
    """Its next line; empty where it ended or the time is over."""
    assert process.stdout is not None
    left_s = max(0.0, end - time.monotonic())
    if not select.select([process.stdout], [], [], left_s)[0]:
        return ""
    return process.stdout.readline()


def judged(found: dict[str, Any]) -> str:
    """Adds what the long loops say; a line about it."""
    if found.get("verdict") != "faster":
        return found.get("error", "")[-300:] or f"{found['verdict']}, {found['word']}"
    ratios = [
        median(row["call_s"]["eager"]) / median(row["call_s"]["setting"])
        for row in found.get("rows", ())
        if "call_s" in row
    ]
    if not ratios:
        return f"not timed: {found.get('not_applied') or found.get('rows')}"
    truth, figure = median(ratios), found["figure"]
    found["processes"] = [round(ratio, 4) for ratio in ratios]
    found["truth"] = round(truth, 4)
    found["off"] = round(figure["value"] / truth - 1, 4)
    found["held"] = figure["low"] <= truth <= figure["high"]
    return (
        f"{figure['value']:.2f} [{figure['low']:.2f}, {figure['high']:.2f}] {found['word']}, "
        f"truth {truth:.2f} {found['processes']}: {100 * found['off']:+.1f} %"
        f"{'' if found['held'] else ', NOT HELD'}; {found['wall_s']} s"
    )


def show(data: dict[str, Any]) -> None:
    """Every network, then all of them."""
    for name, found in data["networks"].items():
        print(f"{name:18} {judged(found)}")
    rows = [found for found in data["networks"].values() if "truth" in found]
    off = [100 * found["off"] for found in rows]
    print(
        f"{sum(found['held'] for found in rows)} of {len(rows)} intervals hold the truth; figures "
        f"off by {median(map(abs, off)):.1f} % in the median, at most {max(map(abs, off)):.1f} %, "
        f"{sum(off) / len(off):+.1f} % in the mean"
    )


def machine(device: str) -> dict[str, Any]:
    import torch

    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--networks", help="comma list; all of the device if left out")
    parser.add_argument("--budget", default="90s", help="of each tune")
    parser.add_argument("--until", type=float, default=1e9, help="none begins later, s")
    parser.add_argument("--to", type=Path, default=Path("long_loops.json"))
    parser.add_argument("--runs", type=Path, help="keep the runs' folders there")
    parser.add_argument("--show", type=Path, nargs="+", help="measure nothing")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(json.loads(options.one))), flush=True)
        return
    for path in options.show or ():
        show(json.loads(path.read_text()))
    if options.show:
        return
    networks = NETWORKS[options.device]
    names = options.networks.split(",") if options.networks else list(networks)
    data: dict[str, Any] = {"machine": machine(options.device), "networks": {}}
    data["runs_apart"] = RUNS_APART
    if options.to.exists():
        data["networks"] = json.loads(options.to.read_text())["networks"]
    began = time.monotonic()
    for name in names:
        found = data["networks"].get(name, {})
        if time.monotonic() - began > options.until or "truth" in found:
            continue
        folder, stem = name.split("/")
        path, phase = STUDIES / folder / "targets" / f"{stem}.py", networks[name]
        run = Path(tempfile.mkdtemp(prefix="long-tune-"))
        if not found.get("config"):
            found = tuned(path, phase, options.device, options.budget, run / "run")
        found["phase"] = phase
        config = found.get("config")
        if config and found["verdict"] == "faster":
            apart = [n for n, v in NOT_APPLIED.items() if config[n] != v]
            if apart or config["environment"] != "default":
                found["not_applied"] = config
            else:
                found["rows"] = timed(path, phase, options.device, found)
        if options.runs:
            shutil.copytree(run, options.runs / name.replace("/", "-"))
        shutil.rmtree(run, ignore_errors=True)
        data["networks"][name] = found
        print(f"{name:18} {judged(found)}", flush=True)
        options.to.write_text(json.dumps(data, indent=1) + "\n")
    show(data)


if __name__ == "__main__":
    main()
