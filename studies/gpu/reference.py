"""Time settings that are written by hand, with code that shares nothing with autocompile.

Each setting has a process and an empty cache of its own. It compiles beside others (the share of
the cores is recorded), is compared with eager mode, and waits. It is timed while all others stand
still: blocks of eager mode and of the setting in turns, the order of each second round mirrored.
The fastest and plain compile() get a second process, on the cache of the first. One JSON file for
each network, with every block.

Processes are forked from one that has imported torch and computed nothing. Where CUDA cannot start
in such a process, they start from nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import gc
import importlib
import inspect
import json
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from networks import MODELS, Model, Spec, settings  # noqa: E402

ROUNDS = 12
BLOCK_S = {"cuda": 0.05, "cpu": 0.1}
LEAD_S = {"cuda": 0.005, "cpu": 0.02}  # untimed calls before each block
AGAIN = 3  # of the fastest get a second process
TIMED_S = 90.0  # a process that takes longer to be timed is ended
THREADS, AUTOTUNE_THREADS = 4, 8  # of a compile, where several compile at once


# --- in the process of a setting ---------------------------------------------------------------


class Side:
    """A network with its optimizer, and what is called.

    Args:
        target: the module of its file.
        model: is changed.
        inputs: on the device.
        spec: what is applied.
        of: the phase and where the repeated blocks stand.
    """

    def __init__(
        self, target: Any, model: Any, inputs: Any, spec: Spec, of: Model
    ) -> None:
        import torch

        if spec.memory_format:
            last = getattr(torch, spec.memory_format)
            model = model.to(memory_format=last)
            inputs = mapped(
                inputs, lambda t: t.to(memory_format=last) if t.dim() == 4 else t
            )
        self.model, self.optimizer = model, None
        trains = of.phase != "forward"
        model.train(of.phase == "train_step")
        if trains:
            self.optimizer = rebuilt(target.get_optimizer(model), spec.optimizer)
        arguments = {
            k: dict(v) if isinstance(v, dict) else v for k, v in spec.arguments.items()
        }
        compiled = functools.partial(torch.compile, **arguments)
        called = model
        if spec.compiled == "model":
            called = compiled(model)
        elif spec.compiled == "blocks":
            for block in blocks_of(model, of.blocks):
                block.compile(**arguments)
        step = self.optimizer.step if self.optimizer else None
        if spec.optimizer == "compiled" and self.optimizer:
            step = torch.compile(functools.partial(self.optimizer.step))

        def forward() -> Any:
            with torch.no_grad():
                return called(**inputs) if isinstance(inputs, dict) else called(*inputs)

        def train() -> Any:
            self.optimizer.zero_grad(set_to_none=True)
            output = called(**inputs) if isinstance(inputs, dict) else called(*inputs)
            loss = target.get_loss(output, inputs)
            loss.backward()
            step()
            return loss.detach()

        def optimize() -> None:
            step()

        call = {"forward": forward, "train_step": train, "optimizer_step": optimize}[
            of.phase
        ]
        self.call = compiled(call) if spec.compiled == "step" else call
        if of.phase == "optimizer_step":
            torch.manual_seed(2)
            for p in model.parameters():
                p.grad = 1e-3 * torch.randn_like(p)


def rebuilt(optimizer: Any, kind: str) -> Any:
    """The same optimizer with another implementation of its step."""
    import torch

    if kind in ("target", "compiled"):
        return optimizer
    takes = inspect.signature(type(optimizer)).parameters
    given = {k: v for k, v in optimizer.defaults.items() if k in takes}
    given |= {"foreach": None, "fused": None}
    if kind == "tensor_lr":
        first = optimizer.param_groups[0]["params"][0]
        given["lr"] = torch.tensor(float(given["lr"]), device=first.device)
    elif kind == "for_loop":
        given["foreach"] = False
    else:
        given[kind] = True
    keys = ("params",)
    groups = [{k: g[k] for k in keys} for g in optimizer.param_groups]
    return type(optimizer)(groups, **given)


def blocks_of(model: Any, names: tuple[str, ...]) -> list[Any]:
    """The repeated blocks; the first name that is there."""
    for name in names:
        with contextlib.suppress(AttributeError):
            return list(model.get_submodule(name))
    raise AttributeError(f"none of {names}")


def mapped(inputs: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(inputs, dict):
        return {k: change(v) for k, v in inputs.items()}
    return tuple(change(v) for v in inputs)


def tensors_of(output: Any) -> list[Any]:
    import torch

    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, dict):
        output = list(output.values())
    return (
        [t for part in output for t in tensors_of(part)] if output is not None else []
    )


def apart(found: list[Any], expected: list[Any]) -> float:
    """The norm of the difference over the norm, the largest of all tensors."""
    worst = 0.0
    for a, b in zip(found, expected, strict=True):
        a, b = a.double(), b.double()
        worst = max(worst, float((a - b).norm() / b.norm().clamp_min(1e-30)))
    return worst


def in_process(work: dict[str, Any], folder: Path) -> None:
    """Compile, compare, wait for the word, time; what is known is written after each."""
    of, spec = MODELS[work["model"]], Spec(**work["spec"])
    cache = work["cache"]
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
    os.environ["TRITON_CACHE_DIR"] = f"{cache}/triton"
    found: dict[str, Any] = {
        "setting": spec.name,
        "spec": spec.to_dict(),
        "process": work["process"],
        "is_cold": work["process"] == 0,
        "compile_threads": work["threads"],
    }

    def save(name: str) -> None:
        temporary = folder / f"{name}.part"
        temporary.write_text(json.dumps(found))
        temporary.rename(folder / f"{name}.json")

    try:
        measured(of, spec, work, found, save, folder)
        found["outcome"] = "ok"
    except BaseException as error:
        found["outcome"] = "failed"
        found["message"] = f"{type(error).__name__}: {error}"[:500]
    save("result")


def measured(
    of: Model,
    spec: Spec,
    work: dict[str, Any],
    found: dict[str, Any],
    save: Callable[[str], None],
    folder: Path,
) -> None:
    began = time.time()
    import torch
    import torch._inductor.config as inductor
    from torch._dynamo.utils import counters

    if work["threads"]:
        inductor.compile_threads = work["threads"]
    inductor.freezing = spec.freezing
    if spec.threads:
        torch.set_num_threads(spec.threads)
    on_gpu = of.device == "cuda"

    def wait() -> None:
        if on_gpu:
            torch.cuda.synchronize()

    sys.path.insert(0, str((HERE / of.target).parent))
    target = importlib.import_module(of.name)
    torch.manual_seed(0)
    base = target.get_model().to(of.device)
    inputs = mapped(target.get_inputs(), lambda t: t.to(of.device))
    found["parameters"] = sum(p.numel() for p in base.parameters())
    found["modules"] = sum(1 for _ in base.modules())
    began_with = [p.detach().clone() for p in base.parameters()]
    compiled = Side(target, copy.deepcopy(base), inputs, spec, of)
    eager = Side(target, base, inputs, Spec("eager"), of)
    found["built_s"] = time.time() - began

    def first_calls(side: Side) -> tuple[list[float], list[Any]]:
        seconds, outputs = [], []
        torch.manual_seed(1)
        for _ in range(3):
            start = time.perf_counter()
            output = side.call()
            wait()
            seconds.append(time.perf_counter() - start)
            outputs.append([t.detach().float().cpu() for t in tensors_of(output)])
            del output
        return seconds, outputs

    found["eager_first_s"], expected = first_calls(eager)
    found["compile_from"] = time.time()
    found["first_s"], got = first_calls(compiled)
    found["compile_to"] = time.time()
    stats = dict(counters["stats"])
    found["graphs"], found["nodes"] = (
        stats.get("unique_graphs", 0),
        stats.get("calls_captured", 0),
    )
    found["skipped_graphs"] = counters["inductor"].get("cudagraph_skips", 0)
    if of.phase == "optimizer_step":
        pairs = zip(
            began_with,
            eager.model.parameters(),
            compiled.model.parameters(),
            strict=True,
        )
        moves = [(e.detach() - b, c.detach() - b) for b, e, c in pairs]
        found["off"] = apart([c for _, c in moves], [e for e, _ in moves])
    elif of.phase == "train_step":
        found["losses"] = [float(o[0]) for o in got]
        found["eager_losses"] = [float(o[0]) for o in expected]
        found["off"] = apart(got[0], expected[0])
    else:
        found["off"] = apart(got[0], expected[0])
    del began_with, got, expected

    def seconds_of(side: Side, calls: int) -> float:
        wait()
        start = time.perf_counter()
        for _ in range(calls):
            side.call()
        wait()
        return (time.perf_counter() - start) / calls

    per_call = {}
    for name, side in (("eager", eager), ("compiled", compiled)):
        seconds_of(side, 2)
        per_call[name] = seconds_of(side, 3)
        if on_gpu:
            gc.collect()
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
            seconds_of(side, 2)
            found[f"{name}_peak_mb"] = (
                torch.cuda.max_memory_allocated() - held
            ) / 2**20
    if on_gpu:
        found["reserved_mb"] = torch.cuda.memory_reserved() / 2**20
    else:
        found["rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found["compile_s"] = max(0.0, sum(found["first_s"]) - 3 * per_call["compiled"])
    with contextlib.suppress(
        Exception
    ):  # its processes would spin beside what is timed
        from torch._inductor.async_compile import shutdown_compile_workers

        shutdown_compile_workers()
    found["ready_s"] = time.time() - began
    gc.collect()
    gc.freeze()
    gc.disable()
    save("ready")
    while not (folder / "go").exists():
        time.sleep(0.03)

    block_s = BLOCK_S[of.device]
    sides = {"eager": eager, "compiled": compiled}
    wait()
    for name, side in sides.items():  # again, with nothing beside
        seconds_of(side, 2)
        per_call[name] = seconds_of(side, max(1, round(0.3 * block_s / per_call[name])))
    calls = {name: max(1, round(block_s / s)) for name, s in per_call.items()}
    leads = {name: max(1, round(LEAD_S[of.device] / s)) for name, s in per_call.items()}
    times: dict[str, list[float]] = {"eager": [], "compiled": []}
    for number in range(ROUNDS + 1):
        order = ["eager", "compiled"] if number % 4 in (0, 3) else ["compiled", "eager"]
        for name in order:
            seconds_of(sides[name], leads[name])
            taken = seconds_of(sides[name], calls[name])
            if number:  # the first round is for the clocks
                times[name].append(round(1e3 * taken, 5))
    found["calls"] = calls
    found["eager_ms"], found["compiled_ms"] = times["eager"], times["compiled"]
    found["recompiled"] = counters["stats"].get("unique_graphs", 0) - found["graphs"]


# --- the process that starts them ----------------------------------------------------------------


@dataclass(eq=False)
class Work:
    """One process that is to be or is running."""

    model: Model
    spec: Spec
    process: int
    folder: Path
    cache: Path
    limit_s: float
    threads: int
    pid: int = 0
    started: float = 0.0
    pauses: list[tuple[float, float]] = field(default_factory=list)
    beside: int = 0

    @property
    def is_ready(self) -> bool:
        return (self.folder / "ready.json").exists()

    @property
    def is_written(self) -> bool:
        return (self.folder / "result.json").exists()

    @property
    def waited_s(self) -> float:
        return time.time() - self.started - sum(b - a for a, b in self.pauses)


class Timed:
    """Runs all work: compiles beside each other, times alone.

    Args:
        jobs: processes at once; the GPU's memory bounds them too.
        gpu_gb: of the GPU's memory that they may hold together.
        until: by ``time.time()``: what has not ended is dropped.
        starts: ``fork`` or ``spawn``.
        tell: is called with each record.
    """

    def __init__(
        self,
        jobs: int,
        until: float,
        starts: str,
        tell: Callable[[Work, dict[str, Any]], list[Work]],
        gpu_gb: float = 70.0,
    ) -> None:
        self.gpu_gb = gpu_gb
        self.jobs, self.until, self.starts, self.tell = jobs, until, starts, tell
        self.running: list[Work] = []

    def run(self, works: list[Work]) -> None:
        waiting = list(works)
        try:
            while (waiting or self.running) and time.time() < self.until:
                self._start(waiting)
                for work in list(self.running):
                    if work.is_written or not alive(work.pid):
                        waiting += self._collect(work, "died")
                    elif not work.is_ready and work.waited_s > work.limit_s:
                        waiting += self._collect(work, f"over {work.limit_s:.0f} s")
                ready = [w for w in self.running if w.is_ready]
                is_stuck = not waiting or not self._fits(waiting[0])
                if ready and (
                    len(ready) >= 6 or is_stuck or len(ready) == len(self.running)
                ):
                    waiting += self._time(ready)
                time.sleep(0.1)
        finally:
            for work in self.running:
                ended(work.pid)

    def _fits(self, work: Work) -> bool:
        held = sum(w.model.gpu_gb for w in self.running)
        compiling = sum(1 for w in self.running if not w.is_ready)
        return compiling < self.jobs and held + work.model.gpu_gb <= self.gpu_gb

    def _start(self, waiting: list[Work]) -> None:
        while waiting and self._fits(waiting[0]):
            work = waiting.pop(0)
            work.folder.mkdir(parents=True)
            work.cache.mkdir(parents=True, exist_ok=True)
            told = {
                "model": work.model.name,
                "spec": work.spec.to_dict(),
                "process": work.process,
                "cache": str(work.cache),
                "threads": work.threads,
            }
            (work.folder / "work.json").write_text(json.dumps(told))
            work.started = time.time()
            work.beside = len(self.running)
            work.pid = started(work.folder, told, self.starts)
            self.running.append(work)

    def _time(self, ready: list[Work]) -> list[Work]:
        others = [w for w in self.running if w not in ready]
        start = time.time()
        for work in others:
            signal_tree(work.pid, signal.SIGSTOP)
        time.sleep(0.3)  # what was queued on the GPU ends
        further: list[Work] = []
        for work in ready:
            if time.time() > self.until:
                break
            (work.folder / "go").touch()
            began = time.time()
            while (
                alive(work.pid)
                and not work.is_written
                and time.time() - began < TIMED_S
            ):
                time.sleep(0.02)
            further += self._collect(work, "died while it was timed")
        for work in others:
            work.pauses.append((start, time.time()))
            signal_tree(work.pid, signal.SIGCONT)
        return further

    def _collect(self, work: Work, why: str) -> list[Work]:
        self.running.remove(work)
        record: dict[str, Any] = {
            "setting": work.spec.name,
            "spec": work.spec.to_dict(),
            "process": work.process,
            "outcome": "failed",
            "message": why,
        }
        if work.is_written:
            time.sleep(0.05)
            record = json.loads((work.folder / "result.json").read_text())
        elif work.is_ready:
            record |= json.loads((work.folder / "ready.json").read_text())
        ended(work.pid)
        record["beside"] = work.beside
        record["wall_s"] = round(time.time() - work.started, 2)
        if "compile_from" in record:
            a, b = record.pop("compile_from"), record.pop("compile_to", time.time())
            held = sum(max(0.0, min(b, y) - max(a, x)) for x, y in work.pauses)
            record["held_s"] = round(held, 2)
            if "compile_s" in record:
                record["compile_s"] = round(max(0.0, record["compile_s"] - held), 2)
        return self.tell(work, record)


def started(folder: Path, told: dict[str, Any], how: str) -> int:
    """Start the process of a setting; what it prints goes to a file."""
    if how == "spawn":
        with (folder / "log").open("w") as log:
            command = [sys.executable, str(HERE / "reference.py"), "--one", str(folder)]
            return subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            ).pid
    if pid := os.fork():
        return pid
    try:
        os.setsid()
        log = os.open(folder / "log", os.O_CREAT | os.O_WRONLY)
        os.dup2(log, 1)
        os.dup2(log, 2)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        in_process(told, folder)
    finally:
        os._exit(0)


def tree(pid: int) -> list[int]:
    """A process and its descendants."""
    found, of = [pid], {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            of[int(path.parent.name)] = int(
                path.read_text().rpartition(")")[2].split()[1]
            )
    for one in found:
        found += [child for child, parent in of.items() if parent == one]
    return found


def signal_tree(pid: int, number: int) -> None:
    for one in tree(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, number)


def alive(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == 0
    except ChildProcessError:
        return False


def ended(pid: int) -> None:
    """End a process that was started here, and what it has started."""
    signal_tree(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def way_to_start(device: str) -> str:
    """``fork`` if a forked process can use the device, with all modules imported."""
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    # no pool here; children make their own
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    import torch
    import torch._dynamo
    import torch._inductor.compile_fx
    import torch._inductor.select_algorithm

    with contextlib.suppress(ImportError):
        import transformers  # noqa: F401
        from transformers import (  # noqa: F401
            BertForSequenceClassification,
            GPT2LMHeadModel,
            LlamaForCausalLM,
            ViTForImageClassification,
            WhisperModel,
        )
    with contextlib.suppress(ImportError):
        import torchvision.models  # noqa: F401
    pid = os.fork()
    if not pid:
        try:
            torch.zeros(2, device=device).sum().item()
            os._exit(0)
        except BaseException as error:
            print(f"forked processes cannot use the device: {error}"[:300], flush=True)
            os._exit(1)
    return "fork" if os.waitpid(pid, 0)[1] == 0 else "spawn"


def machine(device: str) -> dict[str, Any]:
    """Facts, by a process of its own, since a GPU must not be touched here."""
    code = (
        "import json, torch, platform\n"
        f"gpu = {device!r} == 'cuda'\n"
        "print(json.dumps({'torch': torch.__version__, 'python': platform.python_version(),\n"
        " 'device': torch.cuda.get_device_name() if gpu else 'cpu', 'cuda': torch.version.cuda,\n"
        " 'threads': torch.get_num_threads()}))"
    )
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    facts = json.loads(asked.stdout.splitlines()[-1]) if asked.returncode == 0 else {}
    facts |= {"host": platform.machine(), "cores": len(os.sched_getaffinity(0))}
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        facts["cpu"] = next(
            x.split(": ")[1] for x in lines if x.startswith("model name")
        )
    with contextlib.suppress(Exception):
        from importlib.metadata import version

        names = ("transformers", "torchvision", "triton", "onnxruntime", "openvino")
        for name in names:
            with contextlib.suppress(Exception):
                facts[name] = version(name)
    if device == "cuda":
        asked = subprocess.run(
            [
                "nvidia-smi",
                "--query-gpu=driver_version,power.limit",
                "--format=csv,noheader",
            ],
            capture_output=True,
            text=True,
        )
        facts["driver"] = asked.stdout.strip()
    return facts


def keep(to: Path, name: str, table: dict[str, Any]) -> None:
    """Write what is known of a network: a file of its own, or its line in a ``.json``."""
    one = (",", ":")
    if to.suffix != ".json":
        to.mkdir(parents=True, exist_ok=True)
        (to / f"{name}.json").write_text(json.dumps(table, separators=one) + "\n")
        return
    every = json.loads(to.read_text()) if to.exists() else {}
    every[name] = table
    lines = [
        f" {json.dumps(k)}: {json.dumps(v, separators=one)}" for k, v in every.items()
    ]
    to.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def ms_of(record: dict[str, Any]) -> float:
    """Milliseconds of a call."""
    return median(record["compiled_ms"])


def works_of(
    model: Model, specs: list[Spec], scratch: Path, options: argparse.Namespace
) -> list[Work]:
    found = []
    cores = min(32, len(os.sched_getaffinity(0)))
    for spec in specs:
        is_slow = "max-autotune" in str(spec.arguments)
        place = scratch / model.name / spec.name.replace(" ", "_")
        found.append(
            Work(
                model,
                spec,
                0,
                place / "0",
                place / "cache",
                options.limit * (1.0 if is_slow else 0.8),
                (AUTOTUNE_THREADS if is_slow else THREADS)
                if options.jobs > 1
                else cores,
            )
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument(
        "--models", default="", help="names, with commas; all if left out"
    )
    parser.add_argument("--only", default="", help="names of settings, with commas")
    parser.add_argument("--jobs", type=int, default=12, help="compile so many at once")
    parser.add_argument(
        "--until", type=float, default=1e9, help="seconds; what is left is dropped"
    )
    parser.add_argument(
        "--limit", type=float, default=150.0, help="seconds for one to be ready"
    )
    parser.add_argument(
        "--again", type=int, default=AGAIN, help="second processes, of the fastest"
    )
    parser.add_argument(
        "--gpu-gb", type=float, default=70.0, help="of memory for all at once"
    )
    parser.add_argument(
        "--to", type=Path, default=HERE / "h100", help="a folder, or one JSON"
    )
    options = parser.parse_args()
    if options.one:
        in_process(json.loads((options.one / "work.json").read_text()), options.one)
        return
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(1)
    )  # so that what was started is ended
    began = time.time()
    to = options.to
    names = options.models.split(",") if options.models else list(MODELS)
    chosen = [MODELS[n] for n in names]
    starts = way_to_start("cuda")
    facts = machine("cuda") | {"starts": starts}
    print(f"{time.time() - began:.0f} s  {facts}", flush=True)
    scratch = Path(tempfile.mkdtemp(prefix="reference-"))
    tables: dict[str, dict[str, Any]] = {}
    left: dict[str, int] = {}
    works: list[Work] = []
    for model in chosen:
        specs = [
            s
            for s in settings(model)
            if not options.only or s.name in options.only.split(",")
        ]
        own = works_of(model, specs, scratch, options)
        works += own
        left[model.name] = len(own)
        tables[model.name] = {
            "schema": 1,
            "model": model.name,
            "phase": model.phase,
            "has_convolutions": model.has_convolutions,
            "machine": facts,
            "rows": [],
        }

    def tell(work: Work, record: dict[str, Any]) -> list[Work]:
        name = work.model.name
        tables[name]["rows"].append(record)
        keep(to, name, tables[name])
        shown = f"{time.time() - began:4.0f} s  {name:18} {record['setting']:32}"
        if "compiled_ms" in record:
            ratio = median(record["eager_ms"]) / ms_of(record)
            print(
                f"{shown} {ms_of(record):9.3f} ms {ratio:6.2f}  compile"
                f" {record['compile_s']:6.1f} s  off {record['off']:.1e}",
                flush=True,
            )
        else:
            print(f"{shown} {record.get('message', '')[:200]}", flush=True)
        rows = [r for table in tables.values() for r in table["rows"]]
        if len(rows) > 7 and not any("compiled_ms" in r for r in rows):
            raise SystemExit("nothing works here")
        if work.process:
            return []
        left[name] -= 1
        if left[name] or not options.again:
            return []
        done = [r for r in tables[name]["rows"] if "compiled_ms" in r]
        best = [r["setting"] for r in sorted(done, key=ms_of)[: options.again]]
        again = []
        for spec in settings(work.model):
            if spec.name in best or spec.name == "compile":
                place = scratch / name / spec.name.replace(" ", "_")
                again.append(
                    Work(
                        work.model,
                        spec,
                        1,
                        place / "1",
                        place / "cache",
                        100.0,
                        work.threads,
                    )
                )
        return again

    try:
        Timed(options.jobs, began + options.until, starts, tell, options.gpu_gb).run(
            works
        )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(f"{time.time() - began:.0f} s in all", flush=True)


if __name__ == "__main__":
    main()
