"""Time settings of a step of ranks that are written by hand, in long loops of the slowest rank.

``torchrun --nproc-per-node 2 by_hand.py ../targets/gpt2_124m_step.py --to FILE`` times six of
DistributedDataParallel, with ``--strategy fsdp2`` six of FSDP2; nothing of it comes from
autocompile. Each setting has a fresh copy of the model, compiles, makes 20 steps that do not count,
and is timed three times over ``--seconds``, between two barriers.
"""

from __future__ import annotations

import argparse
import copy
import gc
import importlib.util
import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

Settings = dict[str, tuple[dict[str, Any] | None, bool, dict[str, Any]]]

# What torch.compile is given (None: nothing), a fused optimizer, what DDP or fully_shard is given.
SETTINGS: Settings = {
    "eager": (None, False, {}),
    "eager fused": (None, True, {}),
    "compile": ({}, False, {}),
    "reduce-overhead fused": ({"mode": "reduce-overhead"}, True, {}),
    "compile fused": ({}, True, {}),
    "reduce-overhead fused, one bucket": (
        {"mode": "reduce-overhead"},
        True,
        {"bucket_cap_mb": 1 << 20},
    ),
}
# Each layer is compiled, then split.
OF_FSDP2: Settings = {
    "eager": (None, False, {}),
    "eager fused": (None, True, {}),
    "compile": ({}, False, {}),
    "compile fused": ({}, True, {}),
    "compile fused, gathered": ({}, True, {"reshard_after_forward": False}),
    "max-autotune-no-cudagraphs fused": (
        {"mode": "max-autotune-no-cudagraphs"},
        True,
        {},
    ),
}


def layers_of(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules of the longest list of modules."""
    lists = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList)]
    return list(max(lists, key=len))


def split(
    model: torch.nn.Module, arguments: dict[str, Any] | None, given: dict[str, Any]
) -> None:
    """Compile the layers of a model and split the parameters between ranks, in place."""
    kind = next(model.parameters()).device.type
    mesh = init_device_mesh(kind, (dist.get_world_size(),))
    for layer in layers_of(model):
        if arguments is not None:
            layer.compile(**arguments)
        fully_shard(layer, mesh=mesh, **given)
    fully_shard(model, mesh=mesh, **given)


def target_of(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def on(device: torch.device, inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return {k: v.to(device) for k, v in inputs.items()}
    if isinstance(inputs, torch.Tensor):
        return (inputs.to(device),)
    return tuple(v.to(device) for v in inputs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--strategy", choices=("ddp", "fsdp2"), default="ddp")
    parser.add_argument("--to", type=Path, default=Path("ranks.json"))
    options = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank = dist.get_rank()
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    target = target_of(options.target)
    torch.manual_seed(0)
    base = target.get_model().to(device)
    torch.manual_seed(1 + rank)
    inputs = on(device, target.get_inputs())

    def wait() -> None:
        if on_gpu:
            torch.cuda.synchronize()
        dist.barrier()

    rows = []
    settings = SETTINGS if options.strategy == "ddp" else OF_FSDP2
    names = options.only.split(",") if options.only else list(settings)
    for name in names:
        arguments, fused, given = settings[name]
        torch.compiler.reset()
        model = copy.deepcopy(base).train()
        wrapped: Any = model
        if options.strategy == "fsdp2":
            split(model, arguments, given)
        else:
            if arguments is not None:
                model.compile(**arguments)
            ids = [rank] if on_gpu else None
            wrapped = DistributedDataParallel(model, device_ids=ids, **given)
        optimizer = target.get_optimizer(model)
        if fused:
            names_of = ("lr", "weight_decay", "momentum")
            known = {
                k: optimizer.defaults[k] for k in names_of if k in optimizer.defaults
            }
            optimizer = type(optimizer)(model.parameters(), fused=True, **known)

        def step(wrapped: Any = wrapped, optimizer: Any = optimizer) -> None:
            optimizer.zero_grad(set_to_none=True)
            is_named = isinstance(inputs, dict)
            output = wrapped(**inputs) if is_named else wrapped(*inputs)
            target.get_loss(output, inputs).backward()
            optimizer.step()

        wait()
        began = time.perf_counter()
        step()
        wait()
        first_s = time.perf_counter() - began
        for _ in range(20):
            step()
        wait()
        began = time.perf_counter()
        for _ in range(5):
            step()
        wait()
        once = torch.tensor((time.perf_counter() - began) / 5)
        calls = int(options.seconds / once.item()) + 1
        shared = torch.tensor([calls], device=device)
        dist.broadcast(shared, 0)
        times = []
        for _ in range(3):
            wait()
            began = time.perf_counter()
            for _ in range(int(shared)):
                step()
            wait()
            slowest = torch.tensor([time.perf_counter() - began], device=device)
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            times.append(1e3 * float(slowest) / int(shared))
        rows.append({"setting": name, "first_s": round(first_s, 2), "ms": times})
        if rank == 0:
            print(
                f"{name:36} {sorted(times)[1]:8.3f} ms   first {first_s:.1f} s",
                flush=True,
            )
            options.to.write_text(
                json.dumps({"target": options.target.name, "rows": rows})
            )
        del model, wrapped, optimizer, step
        gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
