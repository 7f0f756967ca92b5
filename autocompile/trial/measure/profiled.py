"""What one eager call does, by torch's profiler: where its time goes, and what it waits for."""

from __future__ import annotations

import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity

_TRIES = 3  # of timing a call
_MOST_PLACES = 5
# What torch says of such a call in its debug mode for synchronizations.
_WAITS = "called a synchronizing CUDA operation"


def profile(run: Callable[[], Any], device: torch.device) -> dict[str, Any]:
    """Facts of a call: what it runs, and on a GPU for how long, and where the host waits.

    Returns:
        ``operators``: how many of torch's it calls, without those that these call;
        ``longest``: the name of the operator in which most time is spent on a CPU;
        ``longest_share``: its share of the time in all of them;
        on a GPU also ``kernels``: how many run; ``busy_share``: the share of a call, between two
        synchronizations, in which one of them runs; and ``waits``: places at which the host waits
        for the GPU, as ``model.py:12``, each with how often.
    """
    run()  # what a first call makes is there
    is_cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU]
    if is_cuda:
        activities.append(ProfilerActivity.CUDA)
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or it prints into the trial's log
    with torch.profiler.profile(activities=activities) as seen:
        run()
        if is_cuda:
            torch.cuda.synchronize(device)
    events = list(seen.events())
    found = _of_operators([e for e in events if e.name.startswith("aten::")])
    if is_cuda:
        # An annotation, as of an optimizer's step, spans kernels and the gaps between them.
        on_gpu = [e for e in events if e.device_type.name == "CUDA"]
        kernels = [e for e in on_gpu if not e.is_user_annotation]
        spans = [(e.time_range.start, e.time_range.end) for e in kernels]
        found["kernels"] = len(kernels)
        call_s = min(_seconds(run, device) for _ in range(_TRIES))
        found["busy_share"] = min(1.0, covered(spans) / 1e6 / call_s)
        found["waits"] = _places_of_waits(run)
    return found


def _of_operators(called: list[Any]) -> dict[str, Any]:
    from_python = [
        e for e in called if not (e.cpu_parent and e.cpu_parent.name.startswith("aten"))
    ]
    own_us: Counter[str] = Counter()
    for event in called:
        own_us[event.name.removeprefix("aten::")] += event.self_cpu_time_total
    found: dict[str, Any] = {"operators": len(from_python)}
    if own_us:
        name, most_us = own_us.most_common(1)[0]
        found["longest"] = name
        found["longest_share"] = most_us / max(1e-9, sum(own_us.values()))
    return found


def _seconds(run: Callable[[], Any], device: torch.device) -> float:
    """Of a call that is waited for."""
    torch.cuda.synchronize(device)
    began = time.perf_counter()
    run()
    torch.cuda.synchronize(device)
    return time.perf_counter() - began


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """The length of the union of intervals, each given by its begin and end."""
    length, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        length += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return length


def _places_of_waits(run: Callable[[], Any]) -> dict[str, int]:
    """File and line to how often the host waits there for the GPU, those of most waits first."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as met:
            warnings.simplefilter("always")
            run()
    finally:
        torch.cuda.set_sync_debug_mode(before)
    places = Counter(
        f"{Path(each.filename).name}:{each.lineno}"
        for each in met
        if _WAITS in str(each.message)
    )
    return dict(places.most_common(_MOST_PLACES))
