"""Measures the memory of a side: its tensors, plus what a call allocates."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

__all__ = [
    "CONTEXT_BYTES",
    "freed_bytes",
    "give_back",
    "most_held_bytes",
    "page_faults",
    "peak_bytes",
]

_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of malloc.h
_TINY_BYTES = 2**17
CONTEXT_BYTES = 2**30
"""Of a GPU's memory, for CUDA itself and the libraries' workspaces."""


def peak_bytes(
    call: Callable[[], Any], held: Callable[[], Any], device: torch.device, graphs: bool
) -> int | None:
    """Peak memory of a side in bytes: its own tensors plus what a call allocates; None if unknown.

    Excludes everything else in the process. Counts only tensors on the device. Allocations outside
    torch's allocator count on a CPU only. Nothing may be timed in this process afterwards, since it
    changes the allocator's settings.

    Args:
        call: the unit of work.
        held: returns all tensors that the side holds between two calls.
        device: where it runs.
        graphs: whether the CUDA graphs of this process belong to this side.
    """
    if device.type == "cuda":
        call()  # creates optimizer state, workspaces and CUDA graphs
        return _cuda_peak(call, held, device, graphs)
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        # Larger blocks return to the system when freed. By default glibc keeps those of up to
        # 32 MiB in its heap.
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _TINY_BYTES)
    call()
    with _kept_blocks_taken():
        call()
        growth = _resident_growth(call)
    return None if growth is None else growth + sum(_storages(held(), device).values())


def most_held_bytes(device: torch.device) -> int:
    """The most that this process has needed of a GPU: tensors of all sides, and CUDA itself."""
    return int(torch.cuda.max_memory_allocated(device)) + CONTEXT_BYTES


def give_back(device: torch.device) -> None:
    """Return what torch keeps of a GPU for later, which trials beside this one can use now."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


_HEAP = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class _Heap(ctypes.Structure):
    """``struct mallinfo2`` of malloc.h; ``fordblks`` are the bytes of the free blocks."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _HEAP.split())


@contextlib.contextmanager
def _kept_blocks_taken() -> Iterator[None]:
    """Allocate the larger free blocks of this thread's heap, so that a call uses none of them.

    They were kept before ``mallopt``. In them a call's blocks stay resident when freed, and one in
    which small blocks have settled fits no longer, so the peak would depend on chance.
    """
    _resident_bytes()  # gives their pages back, which cannot be done once they are taken
    taken: list[int | None] = []
    c = ctypes.CDLL(None)
    try:
        with contextlib.suppress(OSError, AttributeError):  # not glibc, or before 2.33
            c.mallinfo2.restype, c.malloc.restype = _Heap, ctypes.c_void_p
            c.malloc.argtypes, c.malloc_usable_size.restype = [ctypes.c_size_t], ctypes.c_size_t
            c.malloc_usable_size.argtypes = c.free.argtypes = [ctypes.c_void_p]
            for _ in range(c.mallinfo2().fordblks // _TINY_BYTES + 1):
                taken.append(c.malloc(_TINY_BYTES))
                # One of the heap has 8 bytes more, one from the system whole pages more.
                if not 8 <= c.malloc_usable_size(taken[-1]) - _TINY_BYTES < 64:
                    break
        yield
    finally:
        for block in taken:
            c.free(block)


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


def _resident_growth(call: Callable[[], Any]) -> int | None:
    """Bytes by which the resident memory peaks above its level before the call.

    The peak is reset through ``/proc/self/clear_refs`` (proc(5)); None if that is not possible.
    """
    before = _resident_bytes()
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    call()
    peak = _status_bytes("VmHWM")
    return max(0, peak - before) if peak else None


def freed_bytes(let_go: Callable[[], None]) -> int:
    """Resident memory in bytes that a function frees; 0 if unknown.

    Finds copies of the weights that are not torch tensors, in a session of another runtime or in
    Inductor's constants. Measuring the growth instead would include what compiling leaves behind.
    """
    before = _resident_bytes()
    let_go()
    return max(0, before - _resident_bytes())


def _resident_bytes() -> int:
    """Resident memory without what malloc holds back; 0 if unknown."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)
    return _status_bytes("VmRSS")


def _status_bytes(name: str) -> int:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return 0


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
    own = sum(
        size
        for address, size in _storages(held(), device).items()
        if not any(start <= address < start + length for start, length in regions)
    )
    return own + max(0, growth) + sum(length for _, length in regions)


def _pool_segments(device: torch.device) -> Iterator[dict[str, Any]]:
    index = torch.cuda.current_device() if device.index is None else device.index
    for segment in torch.cuda.memory_snapshot():  # type: ignore[no-untyped-call]
        is_private = tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0)
        if is_private and segment["device"] == index:
            yield segment
