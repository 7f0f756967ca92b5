"""How much memory a side needs: what its tensors hold, and what a call takes on top."""

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
    """The highest memory in use while a side runs: its own tensors plus what a call takes on top.

    What else lives in the process (the other side, copies kept for comparison) is left out. Only
    tensors of the device count. Memory that a library takes past torch's allocator counts on a CPU
    only. Nothing may be timed in this process afterwards: its allocator is another then.

    Args:
        call: the unit of work.
        held: gives all tensors that the side holds between two calls.
        device: where it runs.
        graphs: the CUDA graphs of this process are this side's.

    Returns:
        Bytes; None where the system does not tell.
    """
    if device.type != "cuda":
        _give_back_at_once()
    call()  # optimizer state, workspaces and recorded graphs are there from now on
    if device.type == "cuda":
        return _cuda_peak(call, held, device, graphs)
    growth = _resident_growth(call)
    return None if growth is None else growth + sum(_storages(held(), device).values())


def _storages(tree: Any, device: torch.device) -> dict[int, int]:
    """Address and bytes of each storage on the device, each once."""
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
    """How far the resident memory of the process rises above its level before the call.

    The peak is reset through ``/proc/self/clear_refs`` (proc(5)); None where that is impossible.
    """
    _give_back_what_is_free()
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
    """How much resident memory of the process goes with what a function lets go of.

    It is how a copy of the weights that no tensor shows is found: a session's of another runtime,
    or the constants of what Inductor has compiled. How far the memory rose when they were made
    would not tell, since what compiling leaves behind is in it too.

    Returns:
        Bytes; None where the system does not tell.
    """
    _give_back_what_is_free()
    before = _status_bytes("VmRSS:")
    let_go()
    _give_back_what_is_free()
    after = _status_bytes("VmRSS:")
    return None if before is None or after is None else max(0, before - after)


def _give_back_what_is_free() -> None:
    """Return freed memory to the system: the allocator would serve the call from it, unseen."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


def _give_back_at_once() -> None:
    """From now on, whatever is not tiny returns to the system as soon as it is freed.

    Otherwise glibc keeps blocks of up to 32 MiB, and where the next one does not fit into a hole,
    both are resident: a tensor more or less, by chance.
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
    """How many pages of 4 KiB, mostly, the kernel has to hand out anew in each call; None: unknown.

    Where glibc gives a call's memory back at its end, the next one pays for it again. Whether that
    happens hangs on what lies at the end of the heap: chance, another one in each process.
    """
    if sys.platform != "linux":  # what a fault costs, and who gives memory back, is another story
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
    """By the allocator's own count, and the pools of CUDA graphs as a whole.

    A graph that is replayed uses the addresses that were allocated when it was recorded, and
    allocates nothing: the memory between its inputs and outputs is in no count but that of the
    pool, which holds it for as long as the graph lives.
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
    # The outputs of a graph count as allocated while they are alive.
    growth -= sum(int(s["allocated_size"]) for s in pools) - used_in_pools
    del output
    regions = [(int(s["address"]), int(s["total_size"])) for s in pools]
    own: int = sum(n for at, n in _storages(held(), device).items() if not _inside(at, regions))
    return own + max(0, growth) + sum(size for _, size in regions)


def _pool_segments(device: torch.device) -> Iterator[dict[str, Any]]:
    """The segments of the allocator that belong to a private pool."""
    index = torch.cuda.current_device() if device.index is None else device.index
    for segment in torch.cuda.memory_snapshot():  # type: ignore[no-untyped-call]
        is_private = tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0)
        if is_private and segment["device"] == index:
            yield segment


def _inside(address: int, regions: list[tuple[int, int]]) -> bool:
    return any(start <= address < start + size for start, size in regions)
