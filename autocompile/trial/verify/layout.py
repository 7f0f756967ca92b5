"""Where the results of a call lie in memory: their strides, and which tensors share memory.

Values tell nothing of that, and a program may depend on it: ``view`` needs strides that fit, and
what is written to a tensor changes those that share its memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from autocompile.trial.values import tensors_by_path
from autocompile.trial.verify.outputs import View

_RESULTS = ("['outputs']", "['loss']")
_PARTS = ("outputs", "loss", "inputs")


@dataclass(frozen=True)
class Layout:
    """How the tensors of a view lie in memory.

    Attributes:
        strides: of each result by path, without axes of one element.
        shared: pairs of paths that share memory, of which one at least is a result.
    """

    strides: dict[str, tuple[int, ...]]
    shared: frozenset[tuple[str, str]]


def layout_of(view: View) -> Layout:
    """The layout of a view; ask before it is copied."""
    tensors = {
        path: x
        for path, x in tensors_by_path(
            {name: view[name] for name in _PARTS if name in view}
        ).items()
        if x.layout is torch.strided and not x.is_nested and x.numel()
    }
    strides = {
        path: tuple(s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1)
        for path, x in tensors.items()
        if path.startswith(_RESULTS)
    }
    return Layout(strides, frozenset(_shared(tensors)))


def _shared(tensors: dict[str, torch.Tensor]) -> Iterator[tuple[str, str]]:
    spans = sorted((*_span(x), path) for path, x in tensors.items())
    for number, (device, _, end, path) in enumerate(spans):
        for other_device, other_begin, _, other in spans[number + 1 :]:
            if other_device != device or other_begin >= end:
                break
            if path.startswith(_RESULTS) or other.startswith(_RESULTS):
                first, second = sorted((path, other))
                yield first, second


def _span(x: torch.Tensor) -> tuple[str, int, int]:
    last = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    return str(x.device), x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size()


def memory_that_is_shared(eager: Layout, compiled: Layout) -> str | None:
    """Which tensors share memory where eager's do not: then a write to one changes the other."""
    more = sorted(compiled.shared - eager.shared)
    if not more:
        return None
    return f"{more[0][0]} and {more[0][1]} share memory, and eager's do not"


def other_layout(eager: Layout, compiled: Layout) -> Iterator[str]:
    """What a program may notice of another layout, in words."""
    for path, strides in eager.strides.items():
        now = compiled.strides.get(path, strides)
        if now != strides:
            yield (
                f"{path} has strides {now} where eager's has {strides}: where view() fails, "
                "use reshape() or contiguous()"
            )
    for first, second in sorted(eager.shared - compiled.shared):
        yield (
            f"{first} and {second} share memory in eager mode and not here: what is written to "
            "one does not change the other"
        )
