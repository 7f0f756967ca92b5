"""Measures the memory of a side: its tensors, plus what a call allocates."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

__all__ = ["freed_bytes", "page_faults", "peak_bytes"]

_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of malloc.h
_TINY_BYTES = 2**17


def peak_bytes(
    call: Callable[[], Any], held: Callable[[], Any], device: torch.device, graphs: bool
) -> int | None:
    """Peak memory of a side: its own tensors plus what a call allocates.

    Excludes everything else in the process. Counts only tensors on the device. Allocations outside
    torch's allocator count on a CPU only. Nothing may be timed in this process afterwards, since it
    changes the allocator's settings.

    Args:
        call: the unit of work.
        held: returns all tensors that the side holds between two calls.
        device: where it runs.
        graphs: whether the CUDA graphs of this process belong to this side.

    Returns:
        Bytes; None if unknown.
    """
    if device.type != "cuda":
        _use_mmap()
    call()  # creates optimizer state, workspaces and CUDA graphs
    if device.type == "cuda":
        return _cuda_peak(call, held, device, graphs)
    growth = _resident_growth(call)
    return None if growth is None else growth + sum(_storages(held(), device).values())


def _storages(tree: Any, device: torch.device) -> dict[int, int]:
    """Address to bytes of each storage on the device."""
    found = {}
    for leaf in pytree.tree_leaves(tree):
        if isinstance(leaf, torch.Tensor) and leaf.device.type == device.type:
            # A sparse tensor has no storage of its own.
            with contextlib.suppress(RuntimeError, NotImplementedError):
                storage = leaf.untyped_storage()
                found[storage.data_ptr()] = storage.nbytes()
    return found


# --- CPU ----------------------------------------------------------------------------------------


def _resident_growth(call: Callable[[], Any]) -> int | None:
    """Bytes by which the resident memory peaks above its level before the call.

    The peak is reset through ``/proc/self/clear_refs`` (proc(5)); None if that is not possible.
    """
    _trim()
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        return None
    before = _status_bytes("VmRSS:")
    call()
    peak = _status_bytes("VmHWM:")
    return None if before is None or peak is None else max(0, peak - before)


def freed_bytes(let_go: Callable[[], None]) -> int | None:
    """Resident memory that a function frees.

    Finds copies of the weights that are not torch tensors, in a session of another runtime or in
    Inductor's constants. Measuring the growth instead would include what compiling leaves behind.

    Returns:
        Bytes; None if unknown.
    """
    _trim()
    before = _status_bytes("VmRSS:")
    let_go()
    _trim()
    after = _status_bytes("VmRSS:")
    return None if before is None or after is None else max(0, before - after)


def _trim() -> None:
    """Return freed memory to the system, so that new allocations raise the resident memory."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


def _use_mmap() -> None:
    """Make malloc use mmap for larger blocks, which return to the system when freed.

    By default glibc keeps freed blocks of up to 32 MiB, which adds a random amount to the peak.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _TINY_BYTES)


def _status_bytes(name: str) -> int | None:
    with contextlib.suppress(OSError), open("/proc/self/status") as file:
        for line in file:
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return None


def page_faults(call: Callable[[], Any], calls: int = 3) -> int | None:
    """Minor page faults per call (pages of mostly 4 KiB); None if unknown.

    If glibc returns a call's memory to the system, the next call pays for it again. Whether it does
    depends on the end of the heap, which differs by chance between processes.
    """
    if sys.platform != "linux":  # other allocators, other costs of a fault
        return None
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(calls):
        call()
    return round((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / calls)


# --- CUDA ---------------------------------------------------------------------------------------


def _cuda_peak(
    call: Callable[[], Any], held: Callable[[], Any], device: torch.device, graphs: bool
) -> int:
    """Peak by the allocator's statistics, plus the whole pools of CUDA graphs.

    Replaying a graph allocates nothing: it uses the addresses from its recording. Its intermediate
    memory is counted only in its pool, which lives as long as the graph.
    """
    gc.collect()
    torch.cuda.synchronize(device)
    used_in_pools = sum(int(s["allocated_size"]) for s in _pool_segments(device)) if graphs else 0
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
    own: int = sum(n for at, n in _storages(held(), device).items() if not _inside(at, regions))
    return own + max(0, growth) + sum(size for _, size in regions)


def _pool_segments(device: torch.device) -> Iterator[dict[str, Any]]:
    """The allocator's segments in private pools."""
    index = torch.cuda.current_device() if device.index is None else device.index
    for segment in torch.cuda.memory_snapshot():  # type: ignore[no-untyped-call]
        is_private = tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0)
        if is_private and segment["device"] == index:
            yield segment


def _inside(address: int, regions: list[tuple[int, int]]) -> bool:
    return any(start <= address < start + size for start, size in regions)
