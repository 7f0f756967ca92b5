"""Backends, modes and modules of the installed torch."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from autocompile.errors import UsageError, first_line
from autocompile.runtime.compiling import register_backend_of
from autocompile.settings.backends import BACKENDS, Backend

# Inductor options without effect on a device; modes that differ only in them are equal there.
_WITHOUT_EFFECT = {"cpu": ("coordinate_descent_tuning",)}


def pick_device(name: str | None) -> torch.device:
    """The device to tune on; CUDA by default if available."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # Elsewhere nothing here waits for a call to end.
    if name.split(":")[0] not in ("cpu", "cuda"):
        raise UsageError(
            f"device {name!r} cannot be used here: calls are timed on a CPU or on a GPU under CUDA "
            "or ROCm",
            hint="--device cpu, or --device cuda",
        )
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        what = f"device {name!r} cannot be used here: {first_line(error)}"
        hint = "autocompile doctor   (tells what can be used here)"
        raise UsageError(what, hint=hint) from None
    return device if device.type == "cuda" else torch.device("cpu")  # cpu:0 is no other


def collectives() -> dict[str, int]:
    """What connects several ranks here, by its name in torch.distributed: ranks with a device each."""
    if not dist.is_available():
        return {}
    found = {}
    if dist.is_gloo_available():
        found["gloo"] = len(os.sched_getaffinity(0))
    if dist.is_nccl_available() and (gpus := torch.cuda.device_count()):
        found["nccl"] = gpus
    return found


def demand_devices(device: torch.device, ranks: int) -> None:
    """Raise a UsageError where so many ranks find no device each."""
    if device.type == "cuda" and (there := torch.cuda.device_count()) < ranks:
        raise UsageError(
            f"{ranks} ranks need {ranks} GPUs, and {there} can be seen here",
            hint=f"--ranks {there}"
            if there > 1
            else "--device cpu, to try it with Gloo",
        )


def modes(device: torch.device) -> dict[str, str]:
    """Inductor's modes, each with the plainest mode of the same effect on this device.

    On a CPU ``reduce-overhead`` has an effect of its own: it has no CUDA graphs, but Inductor skips
    its input checks, which saves about a microsecond per input.
    """
    ignored = _WITHOUT_EFFECT.get(device.type, ())
    seen: dict[frozenset[tuple[str, str]], str] = {}
    equal = {}
    # The mode with the fewest options represents those equal to it.
    options_of = torch._inductor.list_mode_options()
    for name in sorted(options_of, key=lambda name: (len(options_of[name]), name)):
        effect = {(k, str(v)) for k, v in options_of[name].items() if k not in ignored}
        equal[name] = seen.setdefault(frozenset(effect), name)
    return dict(sorted(equal.items(), key=lambda item: (item[0] != "default", item[0])))


def _why_not(name: str, device: torch.device, registered: list[str]) -> str:
    """Why a backend cannot be used here; empty if it can be tried."""
    version, known = torch.__version__, BACKENDS.get(name, Backend())
    if known.device not in (None, device.type):
        return f"it runs on {known.device} only"
    if known.avx512 and not torch.cpu._is_avx512_supported():
        return "this CPU has no AVX-512, without which it compiles as inductor does"
    wanted = f"needs {known.needs}; this is torch {version}" if known.needs else ""
    for package in filter(None, (known.registered_by, known.package)):
        if importlib.util.find_spec(package) is None:
            return wanted or f"{package} is not installed"
    if known.ours and name not in registered:
        return (
            "autocompile, which has this backend, is not installed in this interpreter"
        )
    if known.registered_by:
        try:
            register_backend_of(name)
        except ImportError as error:
            return f"{wanted or 'it cannot be imported'} ({str(error)[:160]})"
        return ""
    if name not in registered:
        return f"torch {version} knows no backend of this name"
    if known.asks:
        module, function = known.asks.split(":")
        reason_of: Callable[[torch.device], str]
        reason_of = getattr(importlib.import_module(module), function)
        return reason_of(device)
    return ""


def backends(
    device: torch.device, names: Sequence[str] | None = None
) -> dict[str, str]:
    """Why each of these backends, by default the usual ones, cannot be used; empty if it can."""
    registered = list(torch._dynamo.list_backends(None))
    return {
        n: _why_not(n, device, registered) for n in names or BACKENDS if n != "eager"
    }


def library_modules() -> list[str]:
    """Imported modules of the standard library and installed packages, in import order.

    Excludes the user's files, since importing those would run the user's code, and packages that
    register a backend: only its own trials import them.
    """
    installed = {
        str(Path(path).resolve())
        for name, path in sysconfig.get_paths().items()
        if name in ("stdlib", "platstdlib", "purelib", "platlib")
    }
    names, left_out = [], {"autocompile", *(b.registered_by for b in BACKENDS.values())}
    for name, module in list(sys.modules.items()):
        origin = getattr(getattr(module, "__spec__", None), "origin", None)
        if name == "__main__" or not origin or name.split(".")[0] in left_out:
            continue
        folders = {str(parent) for parent in Path(origin).parents}
        if origin in ("built-in", "frozen") or folders & installed:
            names.append(name)
    return names
