"""JSON files that grow row by row, so that a measurement can be spread over several sittings.

``{"schema": 1, "machine": {...}, "rows": [...]}`` with one row in a line.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def machine(device: str) -> dict[str, Any]:
    """Where and with which versions a file was measured."""
    cpu = platform.machine()
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(
            x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")
        )
    found = {
        "torch": metadata.version("torch"),
        "python": platform.python_version(),
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
    }
    if device == "cuda":
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        names = subprocess.run(
            query, capture_output=True, text=True
        ).stdout.splitlines()
        found["gpu"] = names[0].strip() if names else "unknown"
    return found


def commit() -> str | None:
    """Which version of this repository is measured; None outside a checkout.

    ``STUDY_COMMIT`` names it where only the files are.
    """
    if given := os.environ.get("STUDY_COMMIT"):
        return given
    with contextlib.suppress(OSError):
        command = ["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"]
        return (
            subprocess.run(command, capture_output=True, text=True).stdout.strip()
            or None
        )
    return None


def load(path: Path) -> list[dict[str, Any]]:
    """The rows of a file; none if there is no such file."""
    return json.loads(path.read_text())["rows"] if path.exists() else []


def append(path: Path, device: str, row: dict[str, Any]) -> None:
    """Add a row; the file is whole at every moment.

    Raises:
        SystemExit: the file was measured on another machine or with another torch.
    """
    here, rows = machine(device), load(path)
    if rows and (there := json.loads(path.read_text())["machine"]) != here:
        raise SystemExit(f"{path} was measured elsewhere: {there}; this is {here}")
    lines = ",\n".join(json.dumps(r, separators=(",", ":")) for r in [*rows, row])
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(
        f'{{"schema": 1,\n"machine": {json.dumps(here)},\n"rows": [\n{lines}\n]}}\n'
    )
    temporary.replace(path)


def last_line(
    command: list[str], environment: dict[str, str], timeout_s: float
) -> dict[str, Any]:
    """Run a child and read the JSON in the last line that it prints."""
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **environment},
            capture_output=True,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"took longer than {timeout_s:.0f} s"}
    lines = done.stdout.splitlines()
    with contextlib.suppress(ValueError, IndexError):
        return json.loads(lines[-1])
    words = done.stderr.decode(errors="replace").strip().splitlines()
    return {"error": words[-1][:300] if words else f"exit code {done.returncode}"}
