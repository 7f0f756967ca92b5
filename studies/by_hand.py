"""What studies write by hand, as a user would, and not with autocompile."""

from __future__ import annotations

import inspect
from typing import Any


def rebuilt(optimizer: Any, kind: str) -> Any:
    """The same optimizer with another implementation of its step."""
    import torch

    if kind in ("default", "target", "compiled"):
        return optimizer
    takes = inspect.signature(type(optimizer)).parameters
    given = {k: v for k, v in optimizer.defaults.items() if k in takes}
    given |= {"foreach": None, "fused": None}
    if kind == "tensor_lr":
        device = optimizer.param_groups[0]["params"][0].device
        given["lr"] = torch.tensor(float(given["lr"]), device=device)
    elif kind == "for_loop":
        given["foreach"] = False
    else:
        given[kind] = True
    groups = [{"params": group["params"]} for group in optimizer.param_groups]
    return type(optimizer)(groups, **given)
