"""Time settings that are written by hand, with code that shares nothing with autocompile.

    python studies/gpu/reference.py --models gpt2_step,vit_forward

Each setting has a process and an empty cache of its own. Some processes compile beside each other,
as many as the GPU's memory takes, and wait. When all have compiled or are late, they are timed one
after another: blocks of eager mode and of the setting in turns. One JSON file for each network, with
every block.
"""

from __future__ import annotations

import argparse
import copy
import functools
import gc
import importlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from networks import MODELS, TARGETS, Model, Spec, settings

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from by_hand import rebuilt

ROUNDS, BLOCK_S = 12, 0.05
LEAD_S = 0.005  # untimed calls before each block
GPU_GB = 70  # of memory for all processes at once
READY_S, TIMED_S = 150.0, 90.0  # a process that takes longer is ended


# --- in the process of a setting -----------------------------------------------------------------


def call_of(
    target: Any, model: Any, inputs: Any, spec: Spec, of: Model
) -> Callable[[], Any]:
    """What is called and timed; changes the model."""
    import torch

    if spec.memory_format:
        last = getattr(torch, spec.memory_format)
        model = model.to(memory_format=last)
        inputs = mapped(
            inputs, lambda t: t.to(memory_format=last) if t.dim() == 4 else t
        )
    model.train(of.phase == "train_step")
    compiled = functools.partial(torch.compile, **spec.arguments)
    called = compiled(model) if spec.compiled == "model" else model
    if spec.compiled == "blocks":
        for block in model.get_submodule(of.blocks):
            block.compile(**spec.arguments)

    def output() -> Any:
        return called(**inputs) if isinstance(inputs, dict) else called(*inputs)

    if of.phase == "forward":
        return torch.no_grad()(output)
    optimizer = rebuilt(target.get_optimizer(model), spec.optimizer)
    step = optimizer.step
    if spec.optimizer == "compiled":
        step = torch.compile(functools.partial(optimizer.step))

    def optimize() -> list[Any]:
        step()
        return list(model.parameters())

    def train() -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = target.get_loss(output(), inputs)
        loss.backward()
        step()
        return loss.detach()

    if of.phase == "optimizer_step":
        torch.manual_seed(2)
        for p in model.parameters():
            p.grad = 1e-3 * torch.randn_like(p)
    call = {"train_step": train, "optimizer_step": optimize}[of.phase]
    return compiled(call) if spec.compiled == "step" else call


def mapped(inputs: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(inputs, dict):
        return {k: change(v) for k, v in inputs.items()}
    return tuple(change(v) for v in inputs)


def tensors_of(output: Any) -> list[Any]:
    """All tensors of an output, in double precision on the CPU."""
    import torch

    if isinstance(output, torch.Tensor):
        return [output.detach().double().cpu()]
    parts = output.values() if isinstance(output, dict) else output
    return [t for part in parts if part is not None for t in tensors_of(part)]


def apart(found: list[Any], expected: list[Any]) -> float:
    """The norm of the difference over the norm, the largest of all tensors."""
    pairs = zip(found, expected, strict=True)
    return max(float((a - b).norm() / b.norm().clamp_min(1e-30)) for a, b in pairs)


def one(work: dict[str, Any], tell: Callable[[Any], None]) -> None:
    """Compile beside the others; time when told."""
    import torch
    import torch._inductor.config as inductor
    from torch._inductor.async_compile import shutdown_compile_workers

    of, spec = MODELS[work["model"]], Spec(**work["spec"])
    inductor.compile_threads = work["threads"]
    inductor.freezing = spec.freezing
    sys.path.insert(0, str(TARGETS))
    target = importlib.import_module(of.path.stem)
    torch.manual_seed(0)
    model = target.get_model().cuda()
    inputs = mapped(target.get_inputs(), lambda t: t.cuda())
    calls = {
        "compiled": call_of(target, copy.deepcopy(model), inputs, spec, of),
        "eager": call_of(target, model, inputs, Spec("eager"), of),
    }

    def seconds_of(name: str, count: int) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            calls[name]()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / count

    outputs: dict[str, list[Any]] = {}
    first_s: dict[str, float] = {}
    for name, call in calls.items():
        torch.manual_seed(1)
        start = time.perf_counter()
        outputs[name] = tensors_of(call())
        first_s[name] = time.perf_counter() - start + 2 * seconds_of(name, 2)
    found = {"off": apart(outputs["compiled"], outputs["eager"])}
    warm_s = 3 * seconds_of("compiled", 3)
    found["compile_s"] = round(max(0.0, first_s["compiled"] - warm_s), 2)
    del outputs
    shutdown_compile_workers()  # they would spin beside what is timed
    gc.collect()
    gc.freeze()
    gc.disable()
    tell("ready")
    sys.stdin.readline()
    call_s = {}
    for name in calls:
        seconds_of(name, 5)
        call_s[name] = seconds_of(name, 5)
    times: dict[str, list[float]] = {"eager": [], "compiled": []}
    for number in range(ROUNDS + 1):
        for name in list(times)[:: 1 if number % 2 else -1]:
            seconds_of(name, max(1, round(LEAD_S / call_s[name])))
            taken = seconds_of(name, max(1, round(BLOCK_S / call_s[name])))
            if number:  # the first round is for the clocks
                times[name].append(round(1e3 * taken, 5))
    tell(found | {f"{name}_ms": values for name, values in times.items()})


# --- the process that starts them ----------------------------------------------------------------


def timed(model: Model, specs: list[Spec], processes: int = 1) -> list[dict[str, Any]]:
    """A row of each process of each setting."""
    works = [(spec, number) for number in range(processes) for spec in specs]
    at_once = max(1, GPU_GB // model.gpu_gb)
    rows = []
    while works:
        rows += together(model, works[:at_once])
        del works[:at_once]
    return rows


def together(model: Model, works: list[tuple[Spec, int]]) -> list[dict[str, Any]]:
    """Processes that compile beside each other, and are timed one after another."""
    threads = max(2, len(os.sched_getaffinity(0)) // len(works))
    began, begun, rows = time.monotonic(), [], []
    with tempfile.TemporaryDirectory() as scratch:
        for number, (spec, _) in enumerate(works):
            cache = Path(scratch) / str(number)
            work = {"model": model.name, "spec": spec.to_dict(), "threads": threads}
            environment = os.environ | model.environment
            environment |= {"TORCHINDUCTOR_CACHE_DIR": str(cache)}
            environment |= {"TRITON_CACHE_DIR": str(cache / "triton")}
            begun.append(
                subprocess.Popen(
                    [sys.executable, __file__, "--one", json.dumps(work)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=(Path(scratch) / f"{number}.log").open("w"),
                    text=True,
                    env=environment,
                )
            )
        is_ready = [bool(told(process, began + READY_S)) for process in begun]
        for process, ready in zip(begun, is_ready, strict=True):
            if not ready:
                process.kill()
        for number, (spec, repeat) in enumerate(works):
            row: dict[str, Any] = {"setting": spec.name, "spec": spec.to_dict()}
            row |= {"process": repeat, "outcome": "failed"}
            result = None
            if is_ready[number]:
                print("go", file=begun[number].stdin, flush=True)
                result = told(begun[number], time.monotonic() + TIMED_S)
            if result:
                row |= {"outcome": "ok", **result}
            else:
                log = (Path(scratch) / f"{number}.log").read_text().strip()
                row["message"] = (
                    log.rpartition("\n")[2][:300] or f"over {READY_S:.0f} s"
                )
                row["wall_s"] = round(time.monotonic() - began, 1)
            begun[number].kill()
            begun[number].wait()
            rows.append(row)
            print(f"{model.name:18} {spec.name:32} {shown(row)}", flush=True)
    return rows


def told(process: subprocess.Popen[str], end: float) -> Any:
    """What it says next; None where it ended or the time is over."""
    assert process.stdout
    left_s = max(0.0, end - time.monotonic())
    if not select.select([process.stdout], [], [], left_s)[0]:
        return None
    line = process.stdout.readline()
    return json.loads(line) if line else None


def shown(row: dict[str, Any]) -> str:
    if "compiled_ms" not in row:
        return row["message"]
    gain = median(row["eager_ms"]) / median(row["compiled_ms"])
    return f"{median(row['compiled_ms']):9.3f} ms {gain:6.2f}  off {row['off']:.1e}"


def machine() -> dict[str, Any]:
    """Facts, by a process of its own, since a GPU must not be touched here."""
    code = (
        "import json, torch; print(json.dumps({'torch': torch.__version__,"
        " 'device': torch.cuda.get_device_name(), 'cuda': torch.version.cuda}))"
    )
    asked = [sys.executable, "-c", code]
    facts: dict[str, Any] = json.loads(subprocess.check_output(asked, text=True))
    return facts | {"cores": len(os.sched_getaffinity(0))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", help="names, with commas; all if left out")
    parser.add_argument("--to", type=Path, default=Path("h100.json"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what compilers print is no answer
        one(
            json.loads(options.one),
            lambda said: print(json.dumps(said), file=answers, flush=True),
        )
        return
    facts = machine()
    every = json.loads(options.to.read_text()) if options.to.exists() else {}
    for name in options.models.split(",") if options.models else MODELS:
        model = MODELS[name]
        every[name] = {
            "model": name,
            "phase": model.phase,
            "has_convolutions": model.has_convolutions,
            "machine": facts,
            "rows": timed(model, settings(model)),
        }
        lines = [f"{json.dumps(n)}: {json.dumps(found)}" for n, found in every.items()]
        options.to.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
