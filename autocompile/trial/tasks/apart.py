"""Keeps the compiled code of the sides of one process apart."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def own_code(number: int) -> Iterator[None]:
    """Context in which torch.compile shares no code with sides of other numbers.

    Dynamo takes equal backends for one and reuses another side's code wherever its guards hold.
    ``torch.compile(isolate_recompiles=True)`` (torch 2.13) keeps the code of each call of
    torch.compile apart, so also that of the equal blocks of a regional setting, which are to share
    theirs. So the backend of a side equals that of its own side only.
    """
    optimize = torch._dynamo.optimize

    def optimize_apart(*args: Any, backend: Any, **kwargs: Any) -> Any:
        kind: Any = type(backend)

        def is_equal(self: Any, other: Any) -> bool:
            return getattr(other, "side", None) == number and bool(
                kind.__eq__(self, other)
            )

        members = {"side": number, "__eq__": is_equal, "__hash__": kind.__hash__}
        backend.__class__ = type(kind.__name__, (kind,), members)
        return optimize(*args, backend=backend, **kwargs)

    torch._dynamo.optimize = optimize_apart
    try:
        yield
    finally:
        torch._dynamo.optimize = optimize
