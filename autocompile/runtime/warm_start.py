"""Warm start: load code that another process compiled.

``torch.compiler.save_cache_artifacts`` saves graphs and, for a CPU, the C++ source of kernels,
which would be built again. So a cache file also holds the built libraries, including those by which
Inductor detects vector instructions.

Loading a cache file unpickles it: trust it like the program that loads it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import io
import json
import os
import platform
import re
import sysconfig
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from autocompile.settings.tuned import Tuned

__all__ = ["as_saved", "fingerprint", "load", "no_headers", "save"]

_ARTIFACTS, _FINGERPRINT, _LIBRARIES = "artifacts", "fingerprint.json", "libraries/"
_LIBRARY = re.compile(r"\w{2}/[\w.]+\.(so|o)")  # built, below Inductor's cache folder
_loaded: set[str] = set()  # cache files that were loaded in this process


def fingerprint(device: torch.device) -> dict[str, Any]:
    """Everything that compiled code depends on, with keys as a warning shows them."""
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "torch's folder": os.path.dirname(torch.__file__),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "device": device.type,
    }
    if device.type == "cuda":
        return found | {"GPU": torch.cuda.get_device_name(device), "cuda": torch.version.cuda}
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    names = sorted(name for name, has_it in capabilities.items() if has_it is True)
    return found | {
        "vector instructions": " ".join([torch.backends.cpu.get_cpu_capability(), *names]),
        "python's headers": sysconfig.get_paths()["include"],
        "C++ compiler": _compiler(),
    }


def _compiler() -> str:
    builder = importlib.import_module("torch._inductor.cpp_builder")
    try:
        said = str(builder.get_compiler_version_info(builder.get_cpp_compiler()))
    except Exception:  # no compiler
        return "none"
    found = re.search(r"[a-zA-Z+]+ version [^_\n]+", said)  # torch replaces line breaks by _
    return found[0].strip() if found else said


def save(path: Path, device: torch.device, threads: Sequence[int]) -> dict[str, int]:
    """Write all code that this process has compiled for a device.

    ``threads`` are torch's thread counts during the compiles: CPU code depends on the count.
    Returns the numbers of ``graphs`` and ``libraries``; no file is written if both are 0.
    """
    made = torch.compiler.save_cache_artifacts()
    folder = _cache_folder()
    places = [p.relative_to(folder).as_posix() for p in sorted(folder.glob("*/*"))]
    libraries = [place for place in places if _LIBRARY.fullmatch(place)]
    graphs = len(made[1].artifacts["inductor"]) if made else 0
    if graphs or libraries:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            said = {**fingerprint(device), "threads": sorted(threads)}
            file.writestr(_FINGERPRINT, json.dumps(said, indent=1))
            file.writestr(_ARTIFACTS, made[0] if made else b"")
            for place in libraries:
                file.writestr(_LIBRARIES + place, (folder / place).read_bytes())
    return {"graphs": graphs, "libraries": len(libraries)}


def load(settings: Tuned, device: torch.device) -> bool:
    """Load the code that was saved with settings, if any, into torch's cache.

    Does so once per process and number of threads, and tells whether it is loaded.

    Warns:
        UserWarning: the file is missing, changed, or made for another torch or machine; torch then
            compiles as usual.
    """
    if not (settings.cache and settings.folder):
        return False
    path = os.path.join(settings.folder, os.path.basename(settings.cache.get("file", "")))
    return _load_once(path, settings.cache.get("sha256", ""), device, torch.get_num_threads())


@functools.cache
def _load_once(path: str, sha256: str, device: torch.device, threads: int) -> bool:
    try:
        why_not = _load(path, sha256, device)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        why_not = f"it cannot be read: {error}"
    if why_not:
        warnings.warn(
            f"the compiled code in {path} is not used, and torch compiles as usual: {why_not}. "
            "`autocompile export RUN -o tuned.json --with-cache` writes it again",
            stacklevel=4,
        )
    return not why_not


def _load(path: str, sha256: str, device: torch.device) -> str:
    """Load a cache file; returns why it cannot be used, or an empty string."""
    if not (os.path.basename(path) and sha256):
        return "the settings do not hold both its name (`file`) and its `sha256`"
    content = Path(path).read_bytes()
    if hashlib.sha256(content).hexdigest() != sha256:
        return "it is not the file that the settings were written with"
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        if differences := _differences(json.loads(file.read(_FINGERPRINT)), device):
            return f"it was made elsewhere ({'; '.join(differences)})"
        for name in file.namelist():
            if _LIBRARY.fullmatch(place := name.removeprefix(_LIBRARIES)):
                _write(_cache_folder() / place, file.read(name))
        artifacts = file.read(_ARTIFACTS)
    if artifacts and torch.compiler.load_cache_artifacts(artifacts) is None:
        return "torch cannot read it"
    _loaded.add(path)
    return ""


def _differences(there: dict[str, Any], device: torch.device) -> list[str]:
    here, threads = fingerprint(device), torch.get_num_threads()
    known = there.pop("threads")
    found = [f"{k} {v}, here {here.get(k)}" for k, v in there.items() if here.get(k) != v]
    if device.type == "cpu" and threads not in known:
        found.append(f"{known} threads, here {threads}")
    return found


def as_saved() -> contextlib.AbstractContextManager[None]:
    """Compile with the cache keys of the loaded code; a null context if none was loaded."""
    return no_headers() if _loaded else contextlib.nullcontext()


@contextlib.contextmanager
def no_headers() -> Iterator[None]:
    """Compile without precompiled headers, which torch builds even if the library exists.

    Their use is part of the cache key.
    """
    config: Any = importlib.import_module("torch._inductor.config")
    if not hasattr(config, "cpp_cache_precompile_headers"):  # older torch
        yield
        return
    with config.patch(cpp_cache_precompile_headers=False):
        yield


def _cache_folder() -> Path:
    return Path(importlib.import_module("torch._inductor.runtime.cache_dir_utils").cache_dir())


def _write(path: Path, content: bytes) -> None:
    """Write by rename, since another process may read the file meanwhile."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(content)
    temporary.chmod(0o755)
    os.replace(temporary, path)
