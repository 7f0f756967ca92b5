"""A live model and its inputs in a file, from which trial processes load them."""

from __future__ import annotations

import hashlib
import io
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from autocompile.errors import TargetError
from autocompile.store.files import make_folder, write_bytes, write_text

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
    """Write a model and what goes with it, as :func:`autocompile.tune` takes them; returns a file.

    Classes and functions of a notebook or script are stored by value, those of imported modules by
    name. The model is not changed; one on a GPU is loaded on the CPU. Its folder in ``folder`` is
    named by its content.
    """
    parts = {"inputs": inputs, "optimizer": optimizer, "loss": loss}
    others = _pickled({name: part for name, part in parts.items() if part is not None})
    data = _pickled({"model": model})
    place = folder / hashlib.sha256(data + others).hexdigest()[:12]
    make_folder(place)
    name = getattr(model, "__name__", type(model).__name__)
    # Not the class's own name: a class of model.py is imported from there.
    file = place / f"live_{re.sub(r'[^A-Za-z0-9_]', '', name).lower() or 'model'}.py"
    write_bytes(file.with_suffix(".model.pt"), data)
    write_bytes(file.with_suffix(".others.pt"), others)
    write_text(file, _FILE.format(path=[str(Path(p).resolve()) for p in sys.path]))
    return file


def _pickled(parts: dict[str, Any]) -> bytes:
    """As ``torch.save`` writes it; an error names the part that cannot be pickled."""
    import cloudpickle

    # Each alone first, to name the one that fails.
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

    def read(
        part: str,
    ) -> dict[str, Any]:  # from the file each time: a trial keeps no copy
        path = Path(file).with_suffix(f".{part}.pt")
        return dict(torch.load(path, map_location="cpu", weights_only=False))

    def get_model() -> Any:
        # A new one for each call: a trial builds several.
        model = read("model")["model"]
        return model if isinstance(model, torch.nn.Module) else model()

    others = read("others")
    functions = {f"get_{name}": part for name, part in others.items()}
    if not callable(others["inputs"]):
        functions["get_inputs"] = lambda: read("others")["inputs"]
    return {"get_model": get_model, **functions}
