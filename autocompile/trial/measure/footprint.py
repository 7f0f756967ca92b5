"""Measures the memory of a side: its tensors, plus what a call allocates."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from autocompile.runtime.sharding import own_part
from autocompile.trial.values import spare_bytes

CONTEXT_BYTES = 2**30
"""Of a GPU's memory, for CUDA itself and the libraries' workspaces."""


def peak_bytes(
    call: Callable[[], Any], held: Callable[[], Any], device: torch.device, graphs: bool
) -> int:
    """Peak memory of a side in bytes: its own tensors on the device plus what a call allocates.

    On a CPU this is what torch's allocator gives, so what another runtime takes is not in it.
    ``held`` returns all tensors that the side holds between two calls; ``graphs`` says whether the
    CUDA graphs of this process belong to it.
    """
    call()  # creates optimizer state, workspaces and CUDA graphs
    if device.type == "cuda":
        return _cuda_peak(call, held, device, graphs)
    growth = _growth_on_cpu(call)
    return growth + sum(_storages(held(), device).values())


def _growth_on_cpu(call: Callable[[], Any]) -> int:
    """The most bytes above those at its beginning that a call has of torch's allocator."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or it prints into the trial's log
    with torch.autograd.profiler.profile(profile_memory=True) as seen:
        call()
    events = [e for e in seen.kineto_results.events() if e.name() == "[memory]"]
    # In order of time; what is freed has a negative size.
    events.sort(key=lambda event: event.start_ns())
    sizes = [int(event.nbytes()) for event in events]
    return max(0, max(itertools.accumulate(sizes), default=0))


def with_peak(call: Callable[[], Any], device: torch.device) -> tuple[Any, int]:
    """The result of a call, and the most bytes that it took of a GPU; on a CPU nobody counts."""
    if device.type != "cuda":
        return call(), 0
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    output = call()
    return output, max(0, torch.cuda.max_memory_allocated(device) - before)


def most_held_bytes(device: torch.device) -> int:
    """The most that this process has needed of a GPU: tensors of all sides, and CUDA itself."""
    held = int(torch.cuda.max_memory_allocated(device)) - spare_bytes(device)
    return held + CONTEXT_BYTES


def give_back(device: torch.device) -> None:
    """Return what torch keeps of a GPU for later, which trials beside this one can use now."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


def _storages(tree: Any, device: torch.device) -> dict[int, int]:
    """Address to bytes of each storage on the device."""
    sizes: dict[int, int] = {}
    for leaf in map(own_part, pytree.tree_leaves(tree)):
        if not isinstance(leaf, torch.Tensor) or leaf.device.type != device.type:
            continue
        # A sparse tensor has no storage of its own.
        with contextlib.suppress(RuntimeError, NotImplementedError):
            storage = leaf.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
    return sizes


def _cuda_peak(
    call: Callable[[], Any], held: Callable[[], Any], device: torch.device, graphs: bool
) -> int:
    """Peak by the allocator's statistics, plus the whole pools of CUDA graphs.

    Replaying a graph allocates nothing: it uses the addresses from its recording. Its intermediate
    memory is counted only in its pool, which lives as long as the graph.
    """
    gc.collect()
    torch.cuda.synchronize(device)
    pools_before = _pools(device) if graphs else []
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    output = call()
    torch.cuda.synchronize(device)
    growth = int(torch.cuda.max_memory_allocated(device)) - before
    # While its output lives, which counts as allocated although it lies in a graph's pool.
    pools = _pools(device) if graphs else []
    del output
    growth -= sum(p.used for p in pools) - sum(p.used for p in pools_before)

    # What is held inside a pool is counted with the pool.
    outside = 0
    for address, size in _storages(held(), device).items():
        if not any(pool.holds(address) for pool in pools):
            outside += size
    return outside + max(0, growth) + sum(pool.size for pool in pools)


@dataclass(frozen=True)
class _Pool:
    """A segment of a GPU's memory that belongs to CUDA graphs, in bytes."""

    address: int
    size: int
    used: int

    def holds(self, address: int) -> bool:
        return self.address <= address < self.address + self.size


def _pools(device: torch.device) -> list[_Pool]:
    index = torch.cuda.current_device() if device.index is None else device.index
    found: list[_Pool] = []
    for segment in torch.cuda.memory_snapshot():  # type: ignore[no-untyped-call]
        # Everything that is no graph's is in the pool (0, 0).
        is_private = tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0)
        if is_private and segment["device"] == index:
            figures = ("address", "total_size", "allocated_size")
            found.append(_Pool(*(int(segment[name]) for name in figures)))
    return found
