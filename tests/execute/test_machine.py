"""One autocompile at a time on a machine, and what other programs use of it."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import autocompile
from autocompile.errors import RunError
from autocompile.execute import exclusive, memory
from autocompile.report import text

HOLDS = """
import sys, time
from autocompile.execute.exclusive import held

with held("run /work/runs/net-0001", print):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the lock is: this test's own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def holder(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another autocompile, at work until its stdin ends."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLDS], text=True, **pipes) as process:
        assert process.stdout and process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_tune_says_who_is_at_work_and_leaves_nothing(
    holder: subprocess.Popen[str], target: Path
) -> None:
    with pytest.raises(RunError) as caught:
        autocompile.tune(target)
    said = caught.value.text()
    who = (
        rf"pid {holder.pid} since \d{{4}}-\d\d-\d\d \d\d:\d\d, run /work/runs/net-0001"
    )
    assert re.search(who, said) and "try: the same command with --wait" in said
    assert not Path("runs").exists()


def test_what_waits_tells_for_whom_and_goes_on_when_the_other_has_ended(
    holder: subprocess.Popen[str],
) -> None:
    told: list[str] = []
    assert holder.stdin
    threading.Timer(1.0, holder.stdin.close).start()
    with exclusive.held("me", told.append, wait=True) as waited_s:
        assert 0.5 < waited_s < 30
    (line,) = told
    assert (
        f"waiting for the autocompile that is at work on this machine: pid {holder.pid}"
        in line
    )


def test_a_dead_holder_blocks_nobody(holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.wait()
    with exclusive.held("me", pytest.fail) as waited_s:
        assert waited_s == 0.0


def folder_there(path: Path) -> None:
    path.mkdir()


def link_there(path: Path) -> None:
    (path.parent / "precious").write_text("mine")
    path.symlink_to(path.parent / "precious")


def file_of_another_user(path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give a file away")
    path.write_text("")
    os.chown(path, 12345, -1)


@pytest.mark.parametrize("make", [folder_there, link_there, file_of_another_user])
def test_where_there_can_be_no_lock_it_says_so_and_goes_on(
    make: Callable[[Path], None], folder: Path
) -> None:
    path, told = folder / f"autocompile-{os.getuid()}.lock", list[str]()
    make(path)
    with exclusive.held("me", told.append):
        pass
    (line,) = told
    assert line.startswith(
        f"cannot tell whether another autocompile is at work: {path}: "
    )
    if make is link_there:
        assert (folder / "precious").read_text() == "mine"


def test_who_only_looks_at_a_lock_keeps_nobody_from_taking_it(folder: Path) -> None:
    with open(folder / "lock", "wb") as file, open(folder / "lock", "rb") as looks:
        fcntl.flock(looks, fcntl.LOCK_SH)
        threading.Timer(0.1, looks.close).start()
        assert exclusive.take(file)


def test_what_other_programs_use_is_counted_in_cores() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        time.sleep(0.3)
        seen = memory.busy_cores(1.0)
        busy.kill()
    assert 0.3 < seen <= len(os.sched_getaffinity(0))


def test_the_header_and_the_report_say_what_other_programs_use(
    work: Path,
    monkeypatch: pytest.MonkeyPatch,
    typed: Callable[..., subprocess.CompletedProcess],
) -> None:
    (work / "net.py").write_text(
        "import torch\ndef get_model(): return torch.nn.Linear(2, 2)\n"
        "def get_inputs(n): return torch.ones(n, 2)\n"
    )
    monkeypatch.setattr("autocompile.api.busy_cores", lambda: 1.2)
    options = (
        "--trials 1 --phase forward --batch-size 2 --backend aot_eager --budget 30s"
    )
    done = typed("tune", "net.py", *options.split())
    assert "other programs use 1.2 of" in done.stderr.splitlines()[0]
    found = autocompile.load("last").environment
    assert found["busy_cores"] == 1.2
    assert "other programs use 1.2 of 2 cores" in text.machine({**found, "cores": 2})


def test_how_busy_a_gpu_is_comes_from_nvidia_smi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 12\necho '[N/A]'\necho 37\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert memory.busy_gpu() == 0.37
    tool.unlink()
    assert memory.busy_gpu() == 0.0
