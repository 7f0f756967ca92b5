"""Describes torch and the machine."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def describe(device: torch.device) -> dict[str, Any]:
    """Versions and machine, as in ``report.json`` under ``environment``."""
    on_cuda = device.type == "cuda"
    cores = (
        len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count()
    )
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if on_cuda else _cpu_name(),
        "cpu": _cpu_name(),
        "cores": cores or 1,  # that this process may run on
        "threads": torch.get_num_threads(),
        "cuda": torch.version.cuda if on_cuda else None,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def describe_gpu(device: torch.device) -> dict[str, Any]:
    """Its memory, and as far as nvidia-smi tells them its driver and the watts that it may draw."""
    properties = torch.cuda.get_device_properties(device)
    facts: dict[str, Any] = {"device_memory_bytes": properties.total_memory}
    query = "--query-gpu=driver_version,enforced.power.limit"
    # By UUID: its indices may differ from torch's.
    command = [
        "nvidia-smi",
        "-i",
        f"GPU-{properties.uuid}",
        query,
        "--format=csv,noheader,nounits",
    ]
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=20, check=True
        )
        facts["driver"], watts = answer.stdout.strip().split(", ")
        facts["power_limit_w"] = float(watts)
    return facts
