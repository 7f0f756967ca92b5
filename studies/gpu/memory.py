"""Peak memory of trials over the bytes of the parameters.

    python studies/gpu/memory.py NAME studies/gpu/memory/cpu.json [--device cuda] [--width 2880]

Runs one trial of each phase in a process of its own and adds its peak to the JSON as NAME. The
package comes from PYTHONPATH, so another commit can be measured. On a CPU the peak is that of the
resident memory above its level before the model is built, sampled from outside, since a trial
resets the kernel's own peak; on a GPU that of torch's allocator.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

LAYERS = 12
PHASES = ("forward", "optimizer_step", "train_step")
PAGE = os.sysconf("SC_PAGE_SIZE")


def width() -> int:
    """Of each layer; twelve of 2880 make 100 M parameters."""
    return int(os.environ.get("MEMORY_WIDTH", "2880"))


def get_model() -> nn.Module:
    layers = [nn.Linear(width(), width(), bias=False) for _ in range(LAYERS)]
    return nn.Sequential(*layers, nn.Tanh())


def get_inputs(batch_size: int) -> tuple[torch.Tensor]:
    return (torch.randn(batch_size, width()),)


def get_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4)


def get_loss(output: torch.Tensor, inputs: Any) -> torch.Tensor:
    return output.square().mean()


def child(phase: str, device: str, backend: str) -> None:
    """Run a trial in this process; prints the level before it, and a GPU's peak after it."""
    from autocompile.trial import worker

    torch.compile(lambda x: x + 1, backend=backend)(torch.zeros(8, device=device))
    peaks = [0]
    if device == "cuda":
        reset = torch.cuda.reset_peak_memory_stats

        def noted(*args: Any) -> None:
            peaks.append(torch.cuda.max_memory_allocated())
            reset(*args)

        torch.cuda.reset_peak_memory_stats = noted
    request = {
        "kind": "trial",
        "number": 0,
        "target": __file__,
        "phase": phase,
        "sides": [{"config": {"backend": backend}}],
        "batch_size": None if phase == "optimizer_step" else 4,
        "device": device,
        "seed": 0,
    }
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "request.json").write_text(json.dumps(request))
        print("READY", flush=True)
        time.sleep(0.2)
        worker.run(folder)
    if device == "cuda":
        print("PEAK", max(*peaks, torch.cuda.max_memory_allocated()), flush=True)


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


def peak_of(phase: str, device: str, backend: str) -> dict[str, Any]:
    """Outcome and peak bytes of a trial."""
    command = [
        sys.executable,
        __file__,
        "child",
        phase,
        "--device",
        device,
        "--backend",
        backend,
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    level, peak = 0, 0

    def watch() -> None:
        nonlocal peak
        while process.poll() is None:
            try:
                peak = max(peak, resident(process.pid))
            except (OSError, IndexError, ValueError):
                return
            time.sleep(0.002)

    outcome, of_gpu = "", 0
    assert process.stdout
    for line in process.stdout:
        if line.startswith("READY"):
            level = resident(process.pid)
            threading.Thread(target=watch, daemon=True).start()
        elif line.startswith("PEAK"):
            of_gpu = int(line.split()[1])
        elif '"result"' in line:
            found = json.loads(line)
            outcome = f"{found['outcome']} {found.get('message', '')}".strip()
    process.wait()
    bytes_ = 4 * LAYERS * width() ** 2
    peak_bytes = of_gpu if device == "cuda" else peak - level
    print(phase, outcome, round(peak_bytes / bytes_, 2), flush=True)
    return {
        "outcome": outcome,
        "peak": peak_bytes,
        "over_parameters": peak_bytes / bytes_,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("file", help="the JSON; of a child its phase")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backend", default="aot_eager")
    parser.add_argument("--width", default="2880")
    args = parser.parse_args()
    os.environ.setdefault("MEMORY_WIDTH", args.width)
    if args.name == "child":
        child(args.file, args.device, args.backend)
        return
    path = Path(args.file)
    table = json.loads(path.read_text()) if path.exists() else {}
    rows = {phase: peak_of(phase, args.device, args.backend) for phase in PHASES}
    about = {
        "parameters": LAYERS * width() ** 2,
        "device": args.device,
        "backend": args.backend,
    }
    table[args.name] = {"torch": torch.__version__, **about, "phases": rows}
    path.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
