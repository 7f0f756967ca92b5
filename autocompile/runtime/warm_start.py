"""Warm start: load code that another process compiled.

``torch.compiler.save_cache_artifacts`` saves graphs and, for a CPU, the C++ source of kernels,
which would be built again. So a cache file also holds the built libraries, including those by which
Inductor detects vector instructions: studies/exports/WARM_START.md.

Loading a cache file unpickles it: trust it like the program that loads it.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import io
import json
import os
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch

from autocompile.errors import RunError
from autocompile.runtime.machine import describe
from autocompile.settings.tuned import Tuned
from autocompile.store.files import make_folder, write_bytes

_ARTIFACTS, _FINGERPRINT, _LIBRARIES = "artifacts", "fingerprint.json", "libraries/"
_LIBRARY = re.compile(r"\w{2}/[\w.]+\.(so|o)")  # built, below Inductor's cache folder
# torch's own keys hold the rest.
_MADE_FOR = ("torch", "python", "device_name", "cpu_capability")


def save(path: Path, device: torch.device) -> int:
    """Write what this process has compiled; returns the number of graphs, of 0 without a file."""
    made, folder = torch.compiler.save_cache_artifacts(), _cache_folder()
    graphs = len(made[1].artifacts["inductor"]) if made else 0
    if made and graphs:
        places = [p.relative_to(folder).as_posix() for p in sorted(folder.glob("*/*"))]
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr(_FINGERPRINT, json.dumps(_fingerprint(device)))
            file.writestr(_ARTIFACTS, made[0])
            for place in filter(_LIBRARY.fullmatch, places):
                file.write(folder / place, _LIBRARIES + place)
    return graphs


def load(settings: Tuned, device: torch.device) -> None:
    """Load the code that was saved with settings, if any, into torch's cache, once a process.

    Warns if the file is missing, changed, or made for another torch or machine.
    """
    if settings.cache and settings.folder:
        path = os.path.join(
            settings.folder, os.path.basename(settings.cache.get("file", ""))
        )
        _load_once(path, settings.cache.get("sha256", ""), device)


@functools.cache
def _load_once(path: str, sha256: str, device: torch.device) -> None:
    try:
        _load(path, sha256, device)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, RunError) as error:
        warnings.warn(
            f"the compiled code in {path} is not used, and torch compiles as usual: {error}. "
            "`autocompile export RUN -o tuned.json --with-cache` writes it again",
            stacklevel=4,
        )


def _load(path: str, sha256: str, device: torch.device) -> None:
    content = Path(path).read_bytes()
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ValueError("it is not the file that the settings were written with")
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        there, here = json.loads(file.read(_FINGERPRINT)), _fingerprint(device)
        if differences := [
            f"{k} {there[k]}, here {here[k]}" for k in here if there[k] != here[k]
        ]:
            raise ValueError(f"it was made elsewhere ({'; '.join(differences)})")
        for name in file.namelist():
            if _LIBRARY.fullmatch(place := name.removeprefix(_LIBRARIES)):
                library = _cache_folder() / place
                make_folder(library.parent)
                write_bytes(library, file.read(name))
        artifacts = file.read(_ARTIFACTS)
    without_headers()
    if not torch.compiler.load_cache_artifacts(artifacts):
        raise ValueError("torch cannot read it")


def without_headers() -> None:
    """Compile without precompiled headers in this process, as what is saved is.

    Torch builds them even if the library exists, and their use is part of the cache key.
    """
    config: Any = importlib.import_module("torch._inductor.config")
    if hasattr(config, "cpp_cache_precompile_headers"):  # not in older torches
        config.cpp_cache_precompile_headers = False


def _fingerprint(device: torch.device) -> dict[str, str]:
    here = describe(device)
    return {name: here[name] for name in _MADE_FOR}


def _cache_folder() -> Path:
    return Path(
        importlib.import_module("torch._inductor.runtime.cache_dir_utils").cache_dir()
    )
