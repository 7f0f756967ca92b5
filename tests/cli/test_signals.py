"""Signals at random moments of real commands: a report or a paragraph, and nothing stays alive."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

MOMENTS = int(os.environ.get("SIGNAL_MOMENTS", "40"))
PATIENCE_S = 30.0  # between the last signal and the command's end
TWICE = "twice"
NET = """import torch
def get_model(): return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
def get_inputs(batch_size=4): return torch.randn(batch_size, 8)
"""
SERVE = """import time, torch
net = torch.nn.Linear(8, 8)
while True:
    net(torch.randn(4, 8)); time.sleep(0.05)
"""
TUNED = """{"autocompile_settings": 1, "target": "net.py", "fingerprint": {}, "interpreters": {},
"batch_sizes": {"forward": 4}, "phases": {"forward": [{"batch_size": 4, "config": {"backend":
"aot_eager"}, "speedup": {"value": 1.5, "low": 1.4, "high": 1.6}, "confirmed_processes": 3}]}}"""
PLAIN = ("--progress", "plain")
COMMANDS = {
    "tune": (("net.py", "--backend", "aot_eager", "--phase", "forward", *PLAIN), 12.0),
    "suite": (("models", "--backend", "aot_eager", "--phase", "forward", *PLAIN), 15.0),
    "verify": (("tuned.json", "--budget", "30s", *PLAIN), 15.0),
    "record": (("-o", "calls.json", "--", sys.executable, "serve.py"), 8.0),
}
"""By name, the words of a command and how long it takes, about."""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    texts = {"net.py": NET, "models/one.py": NET, "models/two.py": NET}
    texts |= {"serve.py": SERVE, "tuned.json": TUNED}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_signal_at_any_moment_ends_a_command_with_words(
    name: str, files: Path
) -> None:
    words, about_s = COMMANDS[name]
    drawn = random.Random(name)
    ends: Counter[str] = Counter()
    for moment in range(MOMENTS):
        kind = drawn.choice([signal.SIGINT, signal.SIGTERM, TWICE])
        after_s = drawn.uniform(0.0, about_s)
        ended, said, left = _ended(name, words, files, kind, after_s)
        told = f"{name} {words}, {kind} after {after_s:.2f} s (number {moment})"
        # What is recorded ends as it does by itself.
        assert name == "record" or "Traceback" not in said, f"{told}: {said[-3000:]}"
        assert "defect in autocompile" not in said, f"{told}: {said[-3000:]}"
        assert not left, f"{told}: alive: {left}"
        assert ended is not None, f"{told}: it had not ended: {said[-3000:]}"
        ends[f"{ended}"] += 1
    print(f"{name}: {dict(ends)}")


def _ended(
    name: str, words: tuple[str, ...], files: Path, kind: str | int, after_s: float
) -> tuple[int | None, str, list[str]]:
    """The exit code of a command after a signal, its words, and what of it is still alive.

    The code is None where it had to be killed.
    """
    marker = f"of-{time.monotonic_ns()}"
    process = subprocess.Popen(
        [sys.executable, "-m", "autocompile", name, *words],
        cwd=files,
        env={**os.environ, "TEST_OF_SIGNALS": marker},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        restore_signals=True,
        preexec_fn=_with_signals,
    )
    time.sleep(after_s)
    number = signal.SIGINT if kind == TWICE else int(kind)
    process.send_signal(number)
    if kind == TWICE:
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
    try:
        said, _ = process.communicate(timeout=PATIENCE_S)
        ended: int | None = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
        ended = None
    return ended, said, _alive(marker)


def _with_signals() -> None:
    """As a terminal starts it, also where the tests run as a job that ignores Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _alive(marker: str) -> list[str]:
    """Programs that have the variable of a command, a second after its end."""
    until = time.monotonic() + 2.0
    while found := [*_with_marker(marker)]:
        if time.monotonic() > until:
            return found
        time.sleep(0.1)
    return []


def _with_marker(marker: str) -> list[str]:
    found = []
    for each in psutil.process_iter():
        try:
            if each.environ().get("TEST_OF_SIGNALS") == marker:
                found.append(" ".join(each.cmdline()))
        except psutil.Error:
            continue
    return found
