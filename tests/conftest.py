"""What tests share."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import autocompile

TARGETS = Path(__file__).parent / "targets"
ROOT = Path(__file__).parent.parent


def alive_with(text: str) -> list[int]:
    """Processes whose environment or command line holds a text."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            seen = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if text.encode() in seen and state != "Z":
            found.append(int(entry.name))
    return found


def assert_nothing_left(text: str, within_s: float = 10.0) -> None:
    """No process that holds the text is alive after a while."""
    deadline = time.monotonic() + within_s
    while alive_with(text) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert alive_with(text) == []


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to be in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> autocompile.Result:
    """One study over every faulty backend; the tests look at what became of each."""
    folder = tmp_path_factory.mktemp("faulty")
    backends = (
        "honest zeros nan slightly_off remembers stale raises needs_a_package segfaults leaves "
        "exits hangs eats_memory shouts forges closes_descriptors aot_eager"
    ).split()
    return autocompile.tune(
        TARGETS / "faulty_backends.py",
        phases=("forward",),
        space=autocompile.SearchSpace(backends=tuple(backends), batch_sizes=(4,)),
        effort="quick",
        timeout_s=20.0,
        memory_limit_bytes=3 * 2**30,
        run_dir=folder / "run",
    )
