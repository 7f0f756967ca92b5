"""Warm start: graphs that another process compiled, as ``torch.compiler`` saves and loads them.

Loading a cache file unpickles it: trust it like the program that loads it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import warnings
from pathlib import Path

import torch

from autocompile.runtime.machine import describe
from autocompile.settings.tuned import Tuned

__all__ = ["load", "save"]

_MADE_FOR = ("torch", "python", "device_name", "cpu_capability")  # torch's keys lack the last


def save(path: Path, device: torch.device) -> int:
    """Write what this process has compiled; returns the number of graphs, of 0 without a file."""
    made = torch.compiler.save_cache_artifacts()
    graphs = len(made[1].artifacts["inductor"]) if made else 0
    if made and graphs:
        path.write_bytes(json.dumps(_fingerprint(device)).encode() + b"\n" + made[0])
    return graphs


def load(settings: Tuned, device: torch.device) -> bool:
    """Load the graphs that were saved with settings, if any, into torch's cache, once a process.

    Warns:
        UserWarning: the file is missing, changed, or made for another torch or machine; torch then
            compiles as usual.
    """
    if not (settings.cache and settings.folder):
        return False
    path = os.path.join(settings.folder, os.path.basename(settings.cache.get("file", "")))
    return _load_once(path, settings.cache.get("sha256", ""), device)


@functools.cache
def _load_once(path: str, sha256: str, device: torch.device) -> bool:
    try:
        why_not = _load(path, sha256, device)
    except (OSError, ValueError) as error:
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
    content = Path(path).read_bytes()
    if hashlib.sha256(content).hexdigest() != sha256:
        return "it is not the file that the settings were written with"
    head, _, artifacts = content.partition(b"\n")
    there, here = json.loads(head), _fingerprint(device)
    if differences := [f"{k} {v}, here {here.get(k)}" for k, v in there.items() if v != here[k]]:
        return f"it was made elsewhere ({'; '.join(differences)})"
    return "" if torch.compiler.load_cache_artifacts(artifacts) else "torch cannot read it"


def _fingerprint(device: torch.device) -> dict[str, str]:
    found = describe(device)
    return {name: found[name] for name in _MADE_FOR}
