"""The ranks of one training program: processes that run the same code and average gradients.

Whatever a process decides from its own clock, memory or numbers could differ from what the others
decide; then one waits in a collective that the others never enter. So such a value is agreed. One
process alone is a rank too, whose agreements are its own values.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from autocompile.errors import TargetError

_Value = TypeVar("_Value")

# Longer than any deadline of the parent, which ends what hangs.
_TIMEOUT = datetime.timedelta(days=1)
# For rank 0 of a user's program, which may be busy with its data.
_PATIENCE = datetime.timedelta(seconds=60)
_asked = Counter[str]()
_CHUNK = 2**22  # numbers whose bits are summed up at once


def first(values: Sequence[_Value]) -> _Value:
    """Rank 0's value, for :meth:`Ranks.agree`."""
    return values[0]


class ApartError(TargetError):
    """What all ranks must have alike differs between them: they train different models."""

    def __init__(self, what: str, problem: str) -> None:
        super().__init__(
            f"the {what} of {problem}, so ranks train different models",
            "where the loss does not use a parameter, DistributedDataParallel averages nothing",
            hint="requires_grad_(False) for what is not used; or find_unused_parameters=True, in "
            "get_model() with --strategy own, or among the torch_ddp_kwargs of a library's learners",
        )


class Ranks:
    """The processes of a group, as one of them sees them.

    Attributes:
        rank: the number of this process, from 0.
        count: of processes.
        seed: is added to the seed of what differs between ranks, such as inputs.
    """

    def __init__(self, rank: int = 0, count: int = 1, group: Any = None) -> None:
        self.rank, self.count, self._group = rank, count, group
        self.seed = 100_003 * rank

    @property
    def are_several(self) -> bool:
        return self.count > 1

    @property
    def name(self) -> str:
        """Of this one, for messages: ``rank 1 of 2``; empty for one alone."""
        return f"rank {self.rank} of {self.count}" if self.are_several else ""

    def agree(self, value: _Value, how: Callable[[Sequence[_Value]], _Value]) -> _Value:
        """One value for all, made by ``how`` of those of each rank in order, as ``max`` or ``any``."""
        if not self.are_several:
            return value
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value, self._group)
        return how(values)

    def end_all(self, error: Exception) -> None:
        """Raise an error that one process alone goes on after: others may be in a collective."""
        if self.are_several:
            raise error

    def wait(self) -> None:
        """Until all ranks are here."""
        if self.are_several:
            dist.barrier(self._group)

    def each(self, tree: Any) -> Any:
        """A list of each rank's tree of tensors, by rank; of one alone its tree itself.

        The own one is as given; the others are copies on the same device.
        """
        if not self.are_several:
            return tree
        spec: Any = torch.utils._pytree
        leaves, form = spec.tree_flatten(tree)
        own = [_to_send(x) for x in leaves]
        gathered: list[Any] = [None] * self.count
        dist.all_gather_object(gathered, own, self._group)
        found = []
        for rank, values in enumerate(gathered):
            if rank == self.rank:
                found.append(tree)
                continue
            pairs = zip(values, leaves, strict=True)
            found.append(spec.tree_unflatten([_beside(x, y) for x, y in pairs], form))
        return found

    def apart(self, tensors: dict[str, torch.Tensor]) -> str:
        """The name of a tensor whose bits differ between ranks, and which rank's; or empty."""
        if not self.are_several:
            return ""
        sums = {name: _sum_of_bits(x) for name, x in tensors.items()}
        gathered: list[Any] = [None] * self.count
        dist.all_gather_object(gathered, sums, self._group)
        for rank, other in enumerate(gathered):
            if other.keys() != gathered[0].keys():
                name = min(other.keys() ^ gathered[0].keys())
                return f"{name} is not there on each of rank 0 and {rank}"
            for name, bits in other.items():
                if bits != gathered[0][name]:
                    return f"{name} differs between rank 0 and {rank}"
        return ""

    def device(self, device: torch.device) -> torch.device:
        """The one of this rank: GPUs are numbered by ranks."""
        is_gpu = self.are_several and device.type == "cuda"
        return torch.device("cuda", self.rank) if is_gpu else device

    def share(self, count: int) -> int:
        """Of so many cores or threads."""
        return max(1, count // self.count)

    def cache(self, path: str) -> str:
        """The folder for what compilers keep: ranks may compile different code for one key."""
        return path if self.rank == 0 else str(Path(path) / f"rank{self.rank}")


_here = Ranks()


def here() -> Ranks:
    """Those of this process; one alone, unless it has joined others."""
    return _here


def ranks_of_program() -> int:
    """How many ranks a user's program has: in its group, or as torchrun says before there is one."""
    if dist.is_available() and dist.is_initialized():
        return int(dist.get_world_size())
    asked = os.environ.get("LOCAL_WORLD_SIZE", "1")  # which only torchrun sets
    return int(asked) if asked.isdecimal() else 1


def of_rank_0(number: int, what: str) -> int:
    """Rank 0's number, in each rank of a user's program, which all ask for it in the same order.

    Through the store in which its processes met, so that no collective waits. One that rank 0 has
    not told in a minute keeps its own, with a warning. ``what`` names what the number is of.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() < 2:
        return number
    store: Any = dist.distributed_c10d._get_default_store()
    key = f"autocompile/{what}/{_asked[what]}"
    _asked[what] += 1
    if dist.get_rank() == 0:
        store.set(key, str(number))
        return number
    try:
        store.wait([key], _PATIENCE)
    except RuntimeError:  # also of a file's
        warnings.warn(
            f"rank 0 has not applied its settings in {_PATIENCE.seconds} s: this rank takes those "
            "that fit its own device",
            stacklevel=5,
        )
        return number
    return int(store.get(key))


def join(meeting: Path, device_type: str) -> Ranks:
    """Make the process group of the ranks that the environment names, as under torchrun.

    Args:
        meeting: a file by which they find each other.
        device_type: what they compute on: NCCL connects GPUs, Gloo the rest.
    """
    global _here
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    on_gpu = device_type == "cuda"
    if on_gpu:
        torch.cuda.set_device(rank)
    store = dist.FileStore(str(meeting), count)  # type: ignore[attr-defined]
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
        store=store,
        rank=rank,
        world_size=count,
        timeout=_TIMEOUT,
    )
    group = dist.new_group(backend="gloo", timeout=_TIMEOUT)
    _here = Ranks(rank, count, group)
    torch.set_num_threads(_here.share(torch.get_num_threads()))
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        if rank and (path := os.environ.get(name)):
            own = Path(_here.cache(path))
            if not own.exists():  # with what caches start with
                with contextlib.suppress(OSError):
                    skipped = shutil.ignore_patterns("rank*")
                    shutil.copytree(path, own, ignore=skipped)
            os.environ[name] = str(own)
    return _here


def _to_send(x: Any) -> Any:
    """What stands for a leaf on other ranks: of an object that has no plain form its type."""
    if isinstance(x, torch.Tensor):
        return (
            x.detach().cpu().clone()
        )  # without the rest of a storage that it is a view of
    is_plain = x is None or isinstance(x, (bool, int, float, complex, str, bytes))
    return x if is_plain else str(type(x))


def _beside(value: Any, own: Any) -> Any:
    is_tensor = isinstance(value, torch.Tensor) and isinstance(own, torch.Tensor)
    return value.to(own.device) if is_tensor else value


def _sum_of_bits(x: torch.Tensor) -> tuple[int, int]:
    """Two sums over the bits, the second by place, so that equal tensors have equal ones."""
    flat = x.detach().contiguous().reshape(-1)
    if flat.is_complex() or flat.dtype is torch.bool:
        flat = flat.view(torch.uint8)
    else:
        size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        flat = flat.view(size[flat.element_size()])
    total = placed = 0
    for begin in range(0, flat.numel(), _CHUNK):
        bits = flat[begin : begin + _CHUNK].long()
        places = torch.arange(1, bits.numel() + 1, device=bits.device)
        total += int(bits.sum())
        placed += int((bits * places).sum()) + begin * int(bits.sum())
    return total, placed
