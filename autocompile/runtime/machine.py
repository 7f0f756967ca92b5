"""Describes torch and the machine."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
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
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
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
        **(_of_gpu(device) if on_cuda else {}),
    }


def _of_gpu(device: torch.device) -> dict[str, Any]:
    """Its memory, and where NVML tells them the driver's version and the watts that it may draw."""
    facts: dict[str, Any] = {
        "device_memory_bytes": torch.cuda.get_device_properties(device).total_memory
    }
    with contextlib.suppress(OSError, AttributeError):
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        version, gpu, milliwatts = (
            ctypes.create_string_buffer(80),
            ctypes.c_void_p(),
            ctypes.c_uint(),
        )
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}".encode()  # indices may differ
        if nvml.nvmlInit_v2() or nvml.nvmlSystemGetDriverVersion(version, 80):
            return facts
        facts["driver"] = version.value.decode()
        refused = nvml.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(gpu))
        if not (refused or nvml.nvmlDeviceGetEnforcedPowerLimit(gpu, ctypes.byref(milliwatts))):
            facts["power_limit_w"] = milliwatts.value / 1000
    return facts
