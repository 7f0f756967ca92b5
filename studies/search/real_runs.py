"""Run ``autocompile tune`` as a user does, and keep when it said what, and what it found.

    python studies/search/real_runs.py normal -- examples/ppo_breakout.py
    python studies/search/real_runs.py full -- examples/ppo_breakout.py --effort full
    python studies/search/real_runs.py stop60 --stop 60 -- examples/ppo_breakout.py

The name is a key of ``<device>/runs.json``; what is there is measured again. ``picks.py`` then
measures what each of them picked.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent


def run(arguments: list[str], stop_s: float | None) -> dict[str, Any]:
    """One command: its wall seconds, what the screen said and when, and its picks."""
    with tempfile.TemporaryDirectory(prefix="real-run-") as scratch:
        folder = str(Path(scratch) / "run")
        command = [sys.executable, "-m", "autocompile", "tune", *arguments]
        command += ["--json", "--run-dir", folder]
        began = time.monotonic()
        # A shell's background job has Ctrl-C ignored, and would hand that down.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        child = subprocess.Popen(
            command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        said: list[tuple[float, str]] = []

        def listen() -> None:
            for line in child.stderr or ():
                said.append((round(time.monotonic() - began, 1), line.rstrip()))

        listener = threading.Thread(target=listen)
        listener.start()
        timer = threading.Timer(stop_s or 0.0, child.send_signal, (signal.SIGINT,))
        if stop_s:
            timer.start()
        report = json.loads((child.stdout.read() if child.stdout else "") or "{}")
        code = child.wait()
        wall_s = time.monotonic() - began
        timer.cancel()
        listener.join()
    return {
        "arguments": arguments,
        "stop_s": stop_s,
        "exit_code": code,
        "wall_s": round(wall_s, 1),
        "environment": report.get("environment"),
        "picks": list(picks(report)),
        "said": said,
    }


def picks(report: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What is best at each batch size of each phase."""
    for name, phase in report.get("phases", {}).items():
        for answer in (phase["answer"], *phase["other_sizes"]):
            if best := answer["best"]:
                is_faster = answer["verdict"] == "faster"
                yield {
                    "phase": name,
                    "batch_size": answer["batch_size"],
                    "config": best["config"] if is_faster else None,
                    "speedup": best["speedup"],
                    "sets": best["confirmed_processes"],
                    "decided": answer["confidence"] == "high",
                }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("arguments", nargs="+", help="of tune")
    parser.add_argument("--stop", type=float, help="send Ctrl-C after so many seconds")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    found = run(options.arguments, options.stop)
    path = HERE / options.device / "runs.json"
    data = json.loads(path.read_text()) if path.exists() else {"schema": 1, "runs": {}}
    head = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(head, capture_output=True, text=True).stdout.strip()
    data["runs"][options.name] = {
        "commit": os.environ.get("STUDY_COMMIT", commit),
        "load": os.getloadavg()[0],
        **found,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1) + "\n")
    print(f"{options.name}: {found['wall_s']} s, exit code {found['exit_code']}")
    for pick in found["picks"]:
        config = pick["config"] or {"backend": "eager"}
        print(f"  {pick['phase']} {pick['batch_size']}: {config}, {pick['speedup']}")
