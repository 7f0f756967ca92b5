"""Tune steps of two ranks, and time settings that are written by hand.

    python studies/gpu/ranks/ranks.py --to ranks.json      # on two GPUs, 25 minutes

For each network it runs ``autocompile tune --ranks 2``, and itself under torchrun, in which nothing
comes from autocompile: each setting has a fresh copy of the model, compiles, makes 20 steps that do
not count, and is timed three times over two seconds between barriers, by the slowest rank.
"""

from __future__ import annotations

import argparse
import copy
import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

TARGETS = Path(__file__).resolve().parents[1] / "targets"
RANKS, BUDGET, SECONDS = 2, "5m", 2.0
# File, STUDY_SIZE and strategy.
NETWORKS = {
    "robot_step": ("robot_step", "", "ddp"),
    "gpt2_124m_step": ("gpt2_step", "124m", "ddp"),
    "llama_350m_step": ("llama_350m_step", "", "fsdp2"),
}
OVERHEAD = {"mode": "reduce-overhead"}
# What torch.compile is given (None: nothing), a fused optimizer, what the wrapper is given.
Settings = dict[str, tuple[dict[str, Any] | None, bool, dict[str, Any]]]
SETTINGS: dict[str, Settings] = {
    "ddp": {
        "eager": (None, False, {}),
        "eager fused": (None, True, {}),
        "compile": ({}, False, {}),
        "compile fused": ({}, True, {}),
        "reduce-overhead fused": (OVERHEAD, True, {}),
        "reduce-overhead fused, one bucket": (
            OVERHEAD,
            True,
            {"bucket_cap_mb": 1 << 20},
        ),
    },
    "fsdp2": {
        "eager": (None, False, {}),
        "eager fused": (None, True, {}),
        "compile": ({}, False, {}),
        "compile fused": ({}, True, {}),
        "compile fused, gathered": ({}, True, {"reshard_after_forward": False}),
    },
}


# --- in each rank, under torchrun ----------------------------------------------------------------


def sharded(model: Any, arguments: dict[str, Any] | None, given: dict[str, Any]) -> Any:
    """The model, whose layers are compiled and then split between ranks."""
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    lists = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList)]
    for layer in max(lists, key=len):
        if arguments is not None:
            layer.compile(**arguments)
        fully_shard(layer, mesh=mesh, **given)
    return fully_shard(model, mesh=mesh, **given)


def step_of(
    target: Any,
    model: Any,
    inputs: Any,
    strategy: str,
    setting: tuple[dict[str, Any] | None, bool, dict[str, Any]],
) -> Callable[[], None]:
    """A step with one setting, which changes the model."""
    arguments, is_fused, given = setting
    if strategy == "fsdp2":
        wrapped = sharded(model, arguments, given)
    else:
        if arguments is not None:
            model.compile(**arguments)
        wrapped = DistributedDataParallel(model, device_ids=[dist.get_rank()], **given)
    optimizer = target.get_optimizer(model)
    if is_fused:
        names = ("lr", "weight_decay")
        known = {name: optimizer.defaults[name] for name in names}
        optimizer = type(optimizer)(model.parameters(), fused=True, **known)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        target.get_loss(wrapped(*inputs), inputs).backward()
        optimizer.step()

    return step


def seconds_of(step: Callable[[], None], count: int) -> float:
    """Seconds of so many steps, of the slowest rank."""
    torch.cuda.synchronize()
    dist.barrier()
    began = time.perf_counter()
    for _ in range(count):
        step()
    torch.cuda.synchronize()
    dist.barrier()
    slowest = torch.tensor([time.perf_counter() - began], device="cuda")
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest)


def by_hand(name: str, to: Path) -> None:
    """Time every setting of a network; rank 0 writes the rows."""
    file, _, strategy = NETWORKS[name]
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    sys.path.insert(0, str(TARGETS))
    target = importlib.import_module(file)
    torch.manual_seed(0)
    base = target.get_model().cuda()
    torch.manual_seed(1 + dist.get_rank())
    inputs = tuple(tensor.cuda() for tensor in target.get_inputs())
    rows = []
    for setting, given in SETTINGS[strategy].items():
        torch.compiler.reset()
        model = copy.deepcopy(base).train()
        step = step_of(target, model, inputs, strategy, given)
        first_s = seconds_of(step, 1)
        seconds_of(step, 20)
        calls = int(SECONDS / (seconds_of(step, 5) / 5)) + 1
        ms = [round(1e3 * seconds_of(step, calls) / calls, 3) for _ in range(3)]
        rows.append({"setting": setting, "first_s": round(first_s, 2), "ms": ms})
        del model, step
        gc.collect()
    if dist.get_rank() == 0:
        to.write_text(json.dumps(rows))
    dist.destroy_process_group()


# --- around them ---------------------------------------------------------------------------------


def both(name: str, scratch: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What ``autocompile tune`` answers, and the rows of the settings by hand."""
    file, size, strategy = NETWORKS[name]
    environment = os.environ | {"STUDY_SIZE": size}
    run, rows = scratch / name, scratch / f"{name}.json"
    command = [sys.executable, "-m", "autocompile", "tune", str(TARGETS / f"{file}.py")]
    command += ["--ranks", str(RANKS), "--strategy", strategy, "--phase", "train_step"]
    command += ["--budget", BUDGET, "--run-dir", str(run)]
    subprocess.run(command, check=True, env=environment)
    answer = json.loads((run / "report.json").read_text())["phases"]["train_step"]
    command = [sys.executable, "-m", "torch.distributed.run"]
    command += ["--nproc-per-node", str(RANKS), __file__, "--one", name]
    subprocess.run([*command, "--to", str(rows)], check=True, env=environment)
    return answer["answer"], json.loads(rows.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--to", type=Path, default=Path("ranks.json"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        by_hand(options.one, options.to)
        return
    found: dict[str, Any] = {"by_hand": {}, "tuned": []}
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.networks.split(","):
            answer, rows = both(name, Path(scratch))
            found["by_hand"][name] = rows
            found["tuned"].append({"network": name, **answer})
            options.to.write_text(json.dumps(found, indent=1) + "\n")
            for row in rows:
                print(f"{name:16} {row['setting']:36} {median(row['ms']):8.2f} ms")
            print(f"{name:16} {answer['confidence']}: {answer['best']}", flush=True)


if __name__ == "__main__":
    main()
