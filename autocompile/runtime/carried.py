"""A live model and its inputs in a file, from which trial processes load them."""

from __future__ import annotations

import hashlib
import inspect
import io
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from autocompile.errors import TargetError

__all__ = ["carry", "load"]

_FILE = '''"""A live model, written by autocompile.tune(model, inputs)."""

import sys

from autocompile.runtime.carried import load

sys.path += [path for path in {path!r} if path not in sys.path]
globals().update(load(__file__))
'''


def carry(
    model: Any,
    inputs: Any,
    folder: Path,
    *,
    optimizer: Callable[[torch.nn.Module], Any] | None = None,
    loss: Callable[[Any, Any], torch.Tensor] | None = None,
) -> Path:
    """Write a model and what goes with it as a target's file.

    Classes and functions of a notebook or script are stored by value, those of imported modules by
    name. The model is not changed; one on a GPU is loaded on the CPU.

    Args:
        model: an ``nn.Module``, or a function without parameters that returns one.
        inputs: a tensor, a tuple or list for ``model(*x)``, a dict for ``model(**x)``, or a
            function from a batch size to one of these.
        folder: for all carried models; each gets a folder in it, named by its content.
        optimizer: from a module to its optimizer.
        loss: from an output and the inputs to a scalar.

    Returns:
        The file, a target for :func:`autocompile.tune`.

    Raises:
        TargetError: something cannot be pickled, or a function of inputs takes no batch size.
    """
    if callable(inputs) and not inspect.signature(inputs).parameters:
        raise TargetError(
            "inputs is a function without a parameter",
            "it is called with a batch size",
            hint="inputs=lambda batch_size: torch.randn(batch_size, 3, 32, 32)",
        )
    parts = {"model": model, "inputs": inputs, "optimizer": optimizer, "loss": loss}
    data = _pickled({name: part for name, part in parts.items() if part is not None})
    place = folder / hashlib.sha256(data).hexdigest()[:12]
    place.mkdir(parents=True, exist_ok=True)
    name = getattr(model, "__name__", type(model).__name__)
    file = place / f"{re.sub(r'[^A-Za-z0-9_]', '', name).lower() or 'model'}.py"
    file.with_suffix(".pt").write_bytes(data)
    file.write_text(_FILE.format(path=[str(Path(p).resolve()) for p in sys.path]), "utf-8")
    return file


def _pickled(parts: dict[str, Any]) -> bytes:
    """As ``torch.save`` writes it.

    Raises:
        TargetError: a part cannot be pickled; names it.
    """
    import cloudpickle

    for name, part in (*parts.items(), ("", parts)):
        buffer = io.BytesIO()
        try:
            torch.save(part, buffer, pickle_module=cloudpickle)
        except Exception as error:  # whatever the user's own classes raise
            raise TargetError(
                f"{name} cannot be carried to the trial processes: {error}",
                "it is pickled, since each trial runs in a process of its own",
                hint="write get_model() and get_inputs(batch_size) to a file (in a notebook: "
                '%%writefile model.py) and call autocompile.tune("model.py")',
            ) from error
    return buffer.getvalue()


def load(file: str) -> dict[str, Callable[..., Any]]:
    """What a target's file defines, from the data beside a file that :func:`carry` wrote."""
    data = Path(file).with_suffix(".pt").read_bytes()

    def read() -> dict[str, Any]:
        return dict(torch.load(io.BytesIO(data), map_location="cpu", weights_only=False))

    def get_model() -> Any:
        model = read()["model"]  # a new one for each call: a trial builds several
        return model if isinstance(model, torch.nn.Module) else model()

    def get_inputs() -> Any:
        return read()["inputs"]

    first = read()
    found = {"get_model": get_model, "get_inputs": get_inputs}
    names = {"optimizer": "get_optimizer", "loss": "get_loss"}
    if callable(first["inputs"]):
        names["inputs"] = "get_inputs"
    return found | {name: first[part] for part, name in names.items() if part in first}
