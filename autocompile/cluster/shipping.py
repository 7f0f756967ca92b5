"""The files of a target that stations need: its own, and what it imports from beside it."""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass
from pathlib import Path

from autocompile.errors import TargetError
from autocompile.store.sources import sources_of

__all__ = ["Shipment", "shipment_of"]

_MOST_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Shipment:
    """Files, base64 by their path under ``place``."""

    files: dict[str, str]
    place: str
    target: str  # as jobs are to name it


def shipment_of(spec: str) -> Shipment:
    """The files of a target, as far as they are here; an installed module ships nothing."""
    here, found = Path.cwd(), sources_of(spec)
    if found is None:
        return Shipment({}, str(here), spec)
    if (total := sum(map(len, found.files.values()))) > _MOST_BYTES:
        raise TargetError(
            f"{spec} and what it needs from beside it are {total / 2**20:.0f} MiB",
            f"at most {_MOST_BYTES >> 20} MiB are sent to each station",
            hint="install large parts on every node, or load weights from a path they share",
        )
    files = {path: base64.b64encode(data).decode() for path, data in found.files.items()}
    is_inside = found.place == here and not os.path.isabs(spec) and ".." not in spec
    return Shipment(files, str(found.place), spec if is_inside else f"{found.file}{found.name}")
