"""Writes files and folders of a run: atomically, and writable only by their owner."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from autocompile.errors import RunError

__all__ = ["make_folder", "not_for_all", "write_bytes", "write_json", "write_text"]


def not_for_all(path: str, flags: int) -> int:
    """An ``opener`` for ``open``: only the owner may write, regardless of the umask."""
    return os.open(path, flags, 0o644)


def make_folder(path: Path) -> None:
    """Create a folder and its parents, writable only by the owner.

    Raises:
        RunError: it cannot be created.
    """
    try:
        for folder in (*reversed(path.parents), path):
            if not folder.is_dir():
                folder.mkdir(mode=0o755, exist_ok=True)
    except OSError as error:
        raise RunError(
            f"cannot create the folder {path}: {error.strerror or error}",
            hint="--run-dir with a folder that you can write to",
        ) from error


def write_text(path: Path, text: str) -> None:
    """Write text by :func:`write_bytes`."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file by rename, so that a reader sees the old or the new content, never a part.

    Raises:
        RunError: the disk is full or the folder cannot be written.
    """
    # A name per process: several processes may write a file that runs share.
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb", opener=not_for_all) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise RunError(
            f"cannot write {path}: {error.strerror or error}",
            "finished trials are safe; free some space or make the folder writable",
            hint="the same command with --resume",
        ) from error


def write_json(path: Path, data: Any) -> None:
    """Write JSON by :func:`write_text`."""
    write_text(path, json.dumps(data, indent=1, allow_nan=False) + "\n")
