"""Writes files and folders of a run: atomically, and writable only by their owner."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from autocompile.errors import RunError


def not_for_all(path: str, flags: int) -> int:
    """An ``opener`` for ``open``: only the owner may write, and no link of another is followed."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o644)


def make_folder(path: Path, is_new: bool = False) -> None:
    """Create a folder and its parents; a FileExistsError if it is there and must be new."""
    try:
        for folder in (*reversed(path.parents), path):
            must_be_new = is_new and folder is path
            if must_be_new or not folder.is_dir():
                folder.mkdir(mode=0o755, exist_ok=not must_be_new)
    except OSError as error:
        if is_new and isinstance(error, FileExistsError):
            raise
        raise RunError(
            f"cannot create the folder {path}: {error.strerror or error}",
            hint="--run-dir with a folder that you can write to",
        ) from error


def write_text(path: Path, text: str) -> None:
    """Write text by rename."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file by rename, so that a reader sees the old or the new content, never a part."""
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
    """Write JSON by rename."""
    write_text(path, json.dumps(data, indent=1, allow_nan=False) + "\n")
