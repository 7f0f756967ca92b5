"""Strain: who takes this process' cores away is seen, and the rounds in which it happens."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time

import pytest
import torch

from autocompile.trial.strain import Strain

pytestmark = pytest.mark.skipif(
    not os.path.exists("/proc/self/schedstat"), reason="this kernel does not count waiting"
)


def spin(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def test_a_neighbour_on_the_same_core_is_seen_and_not_every_moment_is_disturbed() -> None:
    strain = Strain(torch.device("cpu"))
    before = os.sched_getaffinity(0)
    core = {min(before)}
    context = multiprocessing.get_context("spawn")
    neighbour = context.Process(target=_on_core, args=(core, 30.0))
    quiet = []
    try:
        os.sched_setaffinity(0, core)
        for _ in range(50):  # whatever else the machine does: most of these are quiet
            mark = strain.mark()
            spin(0.005)
            quiet.append(strain.disturbed_since(mark))
        neighbour.start()
        time.sleep(1.0)
        mark = strain.mark()
        spin(0.2)
        assert strain.disturbed_since(mark)
        seen = strain.summary()
        assert seen["waited"] > 0.01
        assert seen["throttled"] is False
    finally:
        neighbour.kill()
        os.sched_setaffinity(0, before)
    assert sum(quiet) < 50


def _on_core(core: set[int], seconds: float) -> None:
    os.sched_setaffinity(0, core)
    spin(seconds)


def test_a_thread_that_waits_counts_as_well() -> None:
    """Two threads on one core: each waits while the other runs."""
    strain = Strain(torch.device("cpu"))
    before = os.sched_getaffinity(0)
    thread = threading.Thread(target=lambda: sum(i * i for i in range(3_000_000)))
    try:
        os.sched_setaffinity(0, {min(before)})
        mark = strain.mark()
        thread.start()
        spin(0.15)
        assert strain.disturbed_since(mark)
        thread.join()
    finally:
        os.sched_setaffinity(0, before)
