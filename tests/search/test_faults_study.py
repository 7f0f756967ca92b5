"""What happens to a study when its tuner, its fork server or its disk is harmed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from conftest import TARGETS, assert_nothing_left

Typed = Callable[..., subprocess.CompletedProcess[str]]

COMMAND = [sys.executable, "-m", "autocompile", "tune", "sleeper.py"]
NEW = [
    "--phase",
    "forward",
    "--batch-size",
    "4",
    "--effort",
    "quick",
    "--fullgraph",
    "false",
]
RUN = Path("runs/sleeper-0001")
_PATIENCE_S = 200.0  # a trial sleeps for longer: the machine may be slow
pytestmark = pytest.mark.timeout(900)


class Tuner:
    """`autocompile tune` in a session of its own, as a shell would start it."""

    started: ClassVar[list[Tuner]] = []

    def __init__(self, *options: str) -> None:
        self._out, self._err = (
            Path(f"{name}{len(self.started)}") for name in ("out", "err")
        )
        with open(self._out, "w") as out, open(self._err, "w") as err:
            self.process = subprocess.Popen(
                [*COMMAND, *options, "--json", "--progress", "plain"],
                stdout=out,
                stderr=err,
                start_new_session=True,
                # A test run in the background of a shell would hand an ignored SIGINT down.
                preexec_fn=lambda: (
                    signal.signal(signal.SIGINT, signal.SIG_DFL) and None
                ),
            )
        self.started.append(self)

    @property
    def said(self) -> str:
        return self._err.read_text()

    @property
    def printed(self) -> str:
        return self._out.read_text()

    def until(self, condition: Callable[[], object]) -> Tuner:
        """Wait until something is so."""
        deadline = time.monotonic() + _PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, self.said
            assert self.process.poll() is None, self.said
            time.sleep(0.02)
        return self

    def until_asleep(self) -> Tuner:
        """Wait until a trial sleeps."""
        self.until(Path("asleep").exists)
        Path("asleep").unlink()
        return self

    def send(self, number: int) -> Tuner:
        """A signal, to its whole group as a terminal does."""
        os.killpg(self.process.pid, number)
        return self

    def end(self, within_s: float = _PATIENCE_S) -> int:
        """Its exit code."""
        return self.process.wait(within_s)


@pytest.fixture
def sleeper(work: Path) -> Iterator[Path]:
    """The target in the folder where the tests are."""
    shutil.copy(TARGETS / "sleeper.py", work)
    yield work
    for tuner in Tuner.started:
        tuner.process.kill()
        tuner.end()
    Tuner.started.clear()


def sleep_in(step: str, spare: int = 1) -> None:
    """Processes sleep in this step until they are woken; the first ones, such as the probe, not."""
    for name in ("asleep", "callers"):
        Path(name).unlink(missing_ok=True)
    Path("sleep").write_text(f"{step} {spare}")


def wake() -> None:
    Path("sleep").unlink()


def results(run: Path = RUN) -> dict[str, bytes]:
    """What is on disk of each finished trial."""
    return {p.parent.name: p.read_bytes() for p in run.glob("trials/*/result.json")}


def outcomes() -> dict[tuple[str, str, int], list[str]]:
    """Of each setting in the search: phase, config and batch size; interrupted ones left out."""
    found: dict[tuple[str, str, int], list[str]] = {}
    for text in results().values():
        r = json.loads(text)
        if r["role"] == "search" and r["outcome"] != "interrupted":
            key = r["phase"], json.dumps(r["config"], sort_keys=True), r["batch_size"]
            found.setdefault(key, []).append(r["outcome"])
    return found


def backends() -> list[str]:
    """The backends that have been tried."""
    return sorted(json.loads(config)["backend"] for _, config, _ in outcomes())


def resumed(typed: Typed) -> None:
    """The run is taken to its end."""
    before = results()
    done = typed("tune", "sleeper.py", "--resume", "--progress", "none")
    assert done.returncode == 0, done.stderr
    assert {k: v for k, v in results().items() if k in before} == before
    assert all(len(outcomes) == 1 for outcomes in outcomes().values())
    assert_nothing_left("AUTOCOMPILE_TRIAL=")


@pytest.mark.parametrize(
    "isolation", ["fork", pytest.param("spawn", marks=pytest.mark.slow)]
)
def test_a_killed_tuner_leaves_nothing_alive_and_its_run_is_resumed(
    sleeper: Path, typed: Typed, isolation: str
) -> None:
    sleep_in("compile")
    tuner = Tuner(*NEW, "--backend", "one,two", "--isolation", isolation).until_asleep()
    tuner.until(results)  # eager's, which runs beside the one that sleeps
    before = results()
    second = typed("tune", "sleeper.py", "--resume")
    assert second.returncode == 2
    assert "another autocompile is at work" in second.stderr
    tuner.process.kill()
    tuner.end()
    assert_nothing_left("AUTOCOMPILE_TRIAL=")
    wake()
    assert results() == before
    resumed(typed)
    assert backends() == ["eager", "one", "two"]


def fork_servers(tuner: Tuner) -> list[int]:
    """The process that a tuner forks its trials from."""
    children = f"/proc/{tuner.process.pid}/task/{tuner.process.pid}/children"
    found = []
    for pid in Path(children).read_text().split():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if (
                b"autocompile.trial.fork_server"
                in Path(f"/proc/{pid}/cmdline").read_bytes()
            ):
                found.append(int(pid))
    return found


def test_a_killed_fork_server_costs_the_running_trial_a_second_try(
    sleeper: Path,
) -> None:
    sleep_in("compile")
    tuner = Tuner(*NEW, "--backend", "one,two", "--jobs", "1").until_asleep()
    (fork_server,) = fork_servers(tuner)
    os.kill(fork_server, signal.SIGKILL)
    wake()
    assert tuner.end() == 0, tuner.said
    assert backends() == ["eager", "one", "two"]
    assert list(outcomes().values()) == [["ok"]] * 3
    notes = [json.loads(text)["notes"] for text in results().values()]
    assert sum("killed from outside" in str(note) for note in notes) == 1
    assert_nothing_left("AUTOCOMPILE_TRIAL=")


@pytest.mark.slow
def test_ctrl_c_in_each_step_ends_the_run_and_it_goes_on(
    sleeper: Path, typed: Typed
) -> None:
    options = [*NEW, "--backend", "one", "--jobs", "1"]
    spare = 2  # the probe and eager
    for step in ("eager", "compile", "verify", "measure"):
        before = results()
        sleep_in(step, spare)
        tuner = Tuner(*options).until_asleep().send(signal.SIGINT)
        assert tuner.end() == 130, tuner.said
        assert_nothing_left("AUTOCOMPILE_TRIAL=")
        assert json.loads(tuner.printed)["interrupted"]
        new = [json.loads(v) for k, v in sorted(results().items()) if k not in before]
        assert (new[-1]["outcome"], new[-1]["step"]) == ("interrupted", step)
        assert len(new) == spare
        wake()
        options, spare = ["--resume", "--jobs", "1"], 1
    resumed(typed)


def test_ctrl_c_twice_ends_the_run_and_it_goes_on(sleeper: Path, typed: Typed) -> None:
    sleep_in("measure")
    tuner = Tuner(*NEW, "--backend", "one").until_asleep().send(signal.SIGINT)
    time.sleep(0.01)
    tuner.send(signal.SIGINT)
    assert tuner.end() == 130, tuner.said
    assert "Traceback" not in tuner.said
    assert_nothing_left("AUTOCOMPILE_TRIAL=")
    wake()
    resumed(typed)


@pytest.mark.parametrize("when", ["while the fork server starts", "in the probe"])
def test_ctrl_c_before_there_is_a_run_leaves_none(sleeper: Path, when: str) -> None:
    sleep_in("import", 0)
    tuner = Tuner(*NEW, "--backend", "one")
    if when == "in the probe":
        tuner.until_asleep()
    else:
        tuner.until(lambda: fork_servers(tuner))
    tuner.send(signal.SIGINT)
    assert tuner.end() == 130, tuner.said
    assert tuner.printed == ""
    assert tuner.said == "interrupted\n"
    assert_nothing_left("AUTOCOMPILE_TRIAL=")
    assert not RUN.exists()


# --- disk ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def mounted(place: Path, *options: str) -> Iterator[None]:
    """A small disk of its own at a folder."""
    place.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", *options, "tmpfs", str(place)]
    if (
        shutil.which("mount") is None
        or subprocess.run(command, capture_output=True).returncode
    ):
        pytest.skip("nothing can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place: Path) -> Path:
    """A file that takes all the space that is left."""
    path = place / "ballast"
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as file:
        while True:
            file.write(bytes(2**20))
    return path


def paragraph(tuner: Tuner) -> str:
    """The error that a tuner ended with."""
    assert tuner.end() == 2, tuner.said
    assert "Traceback" not in tuner.said
    assert json.loads(tuner.printed)["error"]["what"] in tuner.said
    _, error, text = tuner.said.partition("error: ")
    assert error, tuner.said
    assert len(text.splitlines()) <= 5, text
    return text


def test_a_disk_that_fills_up_during_a_trial_is_one_paragraph_and_loses_no_other(
    sleeper: Path, typed: Typed
) -> None:
    with mounted(sleeper / "runs", "-o", "size=320m"):
        sleep_in("compile")
        tuner = Tuner(*NEW, "--backend", "one,two").until_asleep()
        tuner.until(results)  # eager's, which runs beside the one that sleeps
        before = results()
        assert len(before) == 1
        ballast = fill(sleeper / "runs")
        wake()
        text = paragraph(tuner)
        assert "No space left on device" in text
        assert "--resume" in text
        assert_nothing_left("AUTOCOMPILE_TRIAL=")
        assert results() == before
        again = paragraph(Tuner("--resume"))
        assert "No space left on device" in again or "MiB are free" in again
        assert results() == before
        ballast.unlink()
        resumed(typed)
        assert backends() == ["eager", "one", "two"]


# --- at any moment ------------------------------------------------------------------------------


EVERY = [
    "--phase",
    "forward",
    "--batch-size",
    "1,2",
    "--effort",
    "quick",
    "--jobs",
    "2",
]
EVERY += [
    "--backend",
    "one,two,honest,wrong,raises,leaves",
    "--run-dir",
    "runs/sleeper-0001",
]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGINT], ids=["SIGKILL", "SIGINT"]
)
def test_a_run_that_is_ended_at_twenty_random_moments_is_the_undisturbed_run(
    sleeper: Path, typed: Typed, number: int
) -> None:
    undisturbed = Tuner(*EVERY)
    assert undisturbed.end(200) == 0, undisturbed.said
    expected = outcomes()
    assert len(expected) == 14
    assert all(len(found) == 1 for found in expected.values())
    shutil.rmtree(RUN)

    moments = random.Random(0)
    for _ in range(20):
        before = results()
        tuner = Tuner(*(["--resume"] if (RUN / "run.json").exists() else EVERY))
        try:
            code = tuner.process.wait(moments.uniform(1.0, 9.0))
            assert code == 0, tuner.said
        except subprocess.TimeoutExpired:
            tuner.send(number)
            assert tuner.end(30) in (
                (130, 0) if number == signal.SIGINT else (-number,)
            )
        assert "Traceback" not in tuner.said
        assert_nothing_left("AUTOCOMPILE_TRIAL=")
        now = results()
        assert {k: v for k, v in now.items() if k in before} == before
    resumed(typed)
    assert outcomes() == expected
