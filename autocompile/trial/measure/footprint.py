"""Measures the memory of a side: its tensors, plus what a call allocates."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

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
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or it prints into the trial's log
    with torch.autograd.profiler.profile(profile_memory=True) as seen:
        call()
    events = [e for e in seen.kineto_results.events() if e.name() == "[memory]"]
    sizes = (e.nbytes() for e in sorted(events, key=lambda event: event.start_ns()))
    growth = max(itertools.accumulate(sizes), default=0)
    return max(0, growth) + sum(_storages(held(), device).values())


def most_held_bytes(device: torch.device) -> int:
    """The most that this process has needed of a GPU: tensors of all sides, and CUDA itself."""
    return int(torch.cuda.max_memory_allocated(device)) + CONTEXT_BYTES


def give_back(device: torch.device) -> None:
    """Return what torch keeps of a GPU for later, which trials beside this one can use now."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


def _storages(tree: Any, device: torch.device) -> dict[int, int]:
    """Address to bytes of each storage on the device."""
    sizes = {}
    for leaf in pytree.tree_leaves(tree):
        if isinstance(leaf, torch.Tensor) and leaf.device.type == device.type:
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
    used_in_pools = (
        sum(int(s["allocated_size"]) for s in _pool_segments(device)) if graphs else 0
    )
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    output = call()
    torch.cuda.synchronize(device)
    growth = int(torch.cuda.max_memory_allocated(device)) - before
    pools = list(_pool_segments(device)) if graphs else []
    # Live outputs of a graph count as allocated.
    growth -= sum(int(s["allocated_size"]) for s in pools) - used_in_pools
    del output
    regions = [(int(s["address"]), int(s["total_size"])) for s in pools]
    outside = sum(
        size
        for address, size in _storages(held(), device).items()
        if not any(start <= address < start + length for start, length in regions)
    )
    return outside + max(0, growth) + sum(length for _, length in regions)


def _pool_segments(device: torch.device) -> Iterator[dict[str, Any]]:
    index = torch.cuda.current_device() if device.index is None else device.index
    for segment in torch.cuda.memory_snapshot():  # type: ignore[no-untyped-call]
        is_private = tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0)
        if is_private and segment["device"] == index:
            yield segment
