"""The command as a user types it: exit codes, streams, and one clear paragraph for each mistake."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, TARGETS, assert_nothing_left
from fakes import FakeExecutor, measured
from scripts import tune

from autocompile.execute.executor import Ending
from autocompile.settings.config import CompileConfig
from autocompile.settings.searchspace import SearchSpace
from autocompile.settings.tuned import Choice, Tuned
from autocompile.store.record import Outcome, Step

Typed = Callable[..., subprocess.CompletedProcess[str]]

PROGRAM = str(Path(sys.executable).with_name("autocompile"))
MODEL = """
import torch

def get_model():
    return torch.nn.Linear(8, 4)

def get_inputs(batch_size):
    return (torch.randn(batch_size, 8),)
"""


def one_paragraph(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("error: "), done.stderr
    assert len(done.stderr.splitlines()) <= 8
    return done.stderr


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("tune nowhere.py", ["there is no file nowhere.py", "autocompile init"]),
        ("tune .", ["is not a Python file"]),
        ("tune ''", ["no target is named", "package.module:NAME"]),
        ("tune model.py:", ["'model.py:' names nothing in model.py"]),
        ("tune model.py --device ''", ["--device names nothing"]),
        ("tune model.py --batch-size 0", ["batch size 0 is below 1"]),
        ("tune model.py --batch-size four", ["not a list of whole numbers"]),
        # Given twice it holds both: none is lost in silence.
        ("tune model.py --batch-size 1 --batch-size 4,x", ["'1,4,x' is not a list"]),
        ("tune model.py --fullgraph maybe", ["none of true, false"]),
        ("tune model.py --fullgraph tru", ["try: --fullgraph true"]),
        (
            "tune model.py --space space.toml",
            ["space.toml: fullgraph: 'yes' is not of type bool"],
        ),
        (
            "tune model.py --budget soon",
            ["not a duration (try 5ms, 90s or 10m)", "tune --help"],
        ),
        ("tune model.py --effort heroic", ["heroic"]),
        ("tune model.py --tolerance 2", ["not a number between 0 and 1 like 0.001"]),
        (
            "tune model.py --accelerators T4",
            ["none to connect to", "try: --ray auto --accel"],
        ),
        ("tune model.py --ray auto --dry-run", ["--dry-run is about this machine"]),
        (
            "tune model.py --ray auto --python python3",
            ["--python is about this machine"],
        ),
        ("tune model.py --resume", ["no run of model.py", "without --resume"]),
        # A dry run refuses what a run refuses.
        (
            "tune model.py --dry-run --memory-limit banana",
            ["'banana' is not a size (try 2GiB)"],
        ),
        ("tune model.py --dry-run --max-latency soon", ["not a duration (try 5ms"]),
        ("tune model.py --dry-run --max-latency p95=soon", ["not a duration (try 5ms"]),
        ("tune model.py --max-latency p96=5ms", ["'p96' is none of p50, p95, p99"]),
        ("tune model.py --budget 1e999", ["'1e999' is not a duration"]),
        (
            "tune model.py --require-speedup nan",
            ["'nan' is not a number above 0 (try 1.05)"],
        ),
        ("tune model.py --require-speedup 2m", ["'2m' is not a number above 0"]),
        (
            "verify --require speedup=2m",
            ["speedup '2m' is not a number (try speedup=1)"],
        ),
        ("verify --require max-graphs=1s", ["max-graphs '1s' is not a number"]),
        (
            "verify --require max-compile-time=1x",
            ["'1x' is not a duration (try max-compile-time"],
        ),
        ("check model.py --tolerance loose", ["'loose' is not a number between 0"]),
        ("verify x.json --require speed=1", ["try: --require speedup=1"]),
        ("verify x.json --require speedup", ["try speedup=1"]),
        ("verify x.json --require speedup=fast", ["try speedup=1"]),
        ("verify x.json", ["cannot read x.json", "autocompile export last -o x.json"]),
        ("show nothing last", ["there is no run nothing"]),
        ("compare a b", ["No such command 'compare'"]),
        ("tune model.py --efort quick", ["No such option: --efort", "--effort"]),
        ("list --run-dir nowhere", ["there is no folder nowhere"]),
        ("export --with-cache", ["-o names none", "-o tuned.json --with-cache"]),
        ("export --to tensorflow", ["tensorflow"]),
        ("show nothing", ["there is no run nothing"]),
        ("show", ["there are no runs"]),
        ("init model.py", ["exists already"]),
    ],
)
def test_a_mistake_on_the_command_line_is_one_paragraph(
    work: Path, typed: Typed, command: str, words: list[str]
) -> None:
    (work / "model.py").write_text(MODEL)
    (work / "space.toml").write_text('fullgraph = ["yes"]')
    text = one_paragraph(typed(*shlex.split(command)))
    assert all(word in text for word in words), text
    assert not (work / "runs").exists()


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        (
            "def build_net(): pass",
            "",
            ["does not define get_model()", "model.py:build_net"],
        ),
        ("def get_model(:", "", ["cannot be imported: SyntaxError", "model.py:1"]),
        ("raise ValueError('broken')", "", ["cannot be imported: ValueError: broken"]),
        (
            MODEL.replace("randn(batch_size, 8)", "randn(-1, 8)"),
            "",
            ["get_inputs(16) of model.py raised", "model.py:8"],
        ),
        (
            MODEL.replace("randn(batch_size, 8)", "randn(batch_size, 9)"),
            "",
            ["eager model fails before anything is compiled", "mat1 and mat2"],
        ),
        (MODEL, "--backend inducter", ["'inducter' is unknown", "--backend inductor"]),
        (MODEL, "--mode fastest", ["'fastest' is unknown", "max-autotune"]),
        (
            MODEL,
            "--phase forward_exploration",
            ["no phase forward_exploration", "forward"],
        ),
        (
            MODEL,
            "--max-latency 9s --max-latency p99=9s",
            ["--max-latency p99 needs calls of"],
        ),
        (
            MODEL,
            "--device cuda:7",
            ["'cuda:7' cannot be used here", "autocompile doctor"],
        ),
        (MODEL, "--device tpu", ["calls are timed on a CPU", "--device cpu"]),
        ("import os; os._exit(3)", "", ["crashed", "exited with code 3 in import"]),
        pytest.param(
            "import time; time.sleep(600)",
            "--timeout 8s",
            ["timeout", "after 8 s"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_mistake_in_the_target_is_one_paragraph(
    work: Path, typed: Typed, source: str, options: str, words: list[str]
) -> None:
    (work / "model.py").write_text(source)
    text = one_paragraph(
        typed("tune", "model.py", "--progress", "none", *options.split())
    )
    assert all(word in text for word in words), text


def test_check_names_the_line_that_fails_and_no_frames_of_torch(
    work: Path, typed: Typed
) -> None:
    own = """
class Mistake(Exception): pass
class Net(torch.nn.Module):
    def forward(self, x):
        raise Mistake("mine\\nin two lines")

"""
    text = MODEL.replace("import torch\n", f"import torch\n{own}")
    (work / "model.py").write_text(text.replace("torch.nn.Linear(8, 4)", "Net()"))
    done = typed("check", "model.py", "--phase", "forward")
    assert done.returncode == 2
    _, what, why, *rest = done.stderr.splitlines()
    assert what.startswith("error: the eager model fails before anything is compiled")
    assert why == "  Mistake: mine"
    (place,) = rest
    assert place.startswith("  model.py:7 "), place


def test_check_shows_frames_where_no_line_is_the_users(
    work: Path, typed: Typed
) -> None:
    (work / "model.py").write_text(MODEL.replace("(batch_size, 8)", "(batch_size, 9)"))
    done = typed("check", "model.py", "--phase", "forward")
    assert "F.linear(" in done.stderr, done.stderr


def test_check_names_the_line_that_crashes_and_what_was_written_before(
    work: Path, typed: Typed
) -> None:
    """Other threads come first in what Python writes."""
    inputs = "get_inputs(batch_size):\n"
    crash = """
    import os, threading, time
    for _ in range(4):
        threading.Thread(target=time.sleep, args=(99,), daemon=True).start()
    print("the disk is full", flush=True)
    os.abort()
"""
    (work / "model.py").write_text(MODEL.replace(inputs, inputs + crash))
    done = typed("check", "model.py", "--phase", "forward")
    assert done.returncode == 2
    _, _, why, *shown = done.stderr.splitlines()
    assert why == "  SIGABRT in eager"
    assert shown[:2] == ["  the disk is full", "  Fatal Python error: Aborted"]
    assert all("get_inputs" in line for line in shown[2:]), shown


def test_init_writes_a_file_that_check_accepts(
    work: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What Inductor makes of it takes a C++ compiler many seconds, and is not what is looked at.
    monkeypatch.setattr(
        "autocompile.commands.diagnose.DEFAULT_INDUCTOR", CompileConfig("aot_eager")
    )
    assert typed("init", "net.py").returncode == 0
    done = typed("check", "net.py", "--phase", "forward", "--timeout", "2m", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["next"] == "autocompile tune net.py --phase forward --timeout 120"
    row = found["phases"]["forward"]
    assert row["outcome"] == "ok"
    assert row["graphs"] == 1
    assert row["compile_s"] > 0


def test_check_names_graph_breaks_and_what_takes_the_time_as_the_page_shows(
    work: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "autocompile.commands.diagnose.DEFAULT_INDUCTOR", CompileConfig("aot_eager")
    )
    page = (ROOT / "docs" / "slow.md").read_text("utf-8")
    code, shown = re.findall(r"```(?:python)?\n(.*?)```", page, re.DOTALL)[:2]
    Path("net.py").write_text(code, "utf-8")
    done = typed("check", "net.py", "--phase", "forward")
    assert done.returncode == 0, done.stderr

    def words(text: str) -> list[str]:  # figures are of a machine
        return re.sub(r"[\d.]+(×|%| s\b)", "", " ".join(text.split())).split()

    expected = [re.sub(r"\[[^]]*\] ", "", line) for line in shown.splitlines()]
    printed = re.sub(r"\[[^]]*\] ", "", " ".join(done.stdout.split()))
    for line in filter(None, expected):
        assert " ".join(words(line)) in " ".join(words(printed))


def test_doctor_tries_a_backend_and_explains_what_does_not_work(
    work: Path, typed: Typed
) -> None:
    row = json.loads(typed("doctor", "onnxrt", "--json").stdout)["backends"]["onnxrt"]
    assert row["works"]
    outcomes = {name: mode["outcome"] for name, mode in row["modes"].items()}
    assert outcomes == {"default": "ok", "weights=baked": "ok"}


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        ("ipex", "needs torch 2.8.*"),
        ("zentorch", "needs zentorch of torch's own minor version"),
    ],
)
def test_doctor_says_what_to_install(
    backend: str, words: str, work: Path, typed: Typed
) -> None:
    if find_spec(backend):
        pytest.skip(f"{backend} is installed")
    done = typed("doctor", backend)
    assert done.returncode == 0, done.stderr
    assert words in done.stdout and "pip install" in done.stdout


def test_ctrl_c_reports_and_resume_goes_on(work: Path, typed: Typed) -> None:
    shutil.copy(TARGETS / "sleeper.py", "model.py")
    Path("sleep").write_text("compile 1")
    options = [
        "--phase",
        "forward",
        "--backend",
        "one",
        "--batch-size",
        "4",
        "--jobs",
        "1",
    ]
    command = [PROGRAM, "tune", "model.py", "--effort", "quick", *options, "--json"]
    with subprocess.Popen(
        [*command, "--progress", "plain"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        # A test run in the background of a shell would hand an ignored SIGINT down.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
    ) as process:
        while not Path("asleep").exists():
            assert process.poll() is None
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        stdout, _ = process.communicate(timeout=100)
    assert process.returncode == 130
    report = json.loads(stdout)
    assert report["interrupted"]
    done = [
        t["number"]
        for t in report["phases"]["forward"]["trials"]
        if t["outcome"] == "ok"
    ]
    assert done == [0]
    assert_nothing_left("AUTOCOMPILE_TRIAL=")

    Path("sleep").unlink()
    again = typed("tune", "model.py", "--resume", "--json", "--progress", "none")
    assert again.returncode == 0, again.stderr
    report = json.loads(again.stdout)
    trials = report["phases"]["forward"]["trials"]
    assert not report["interrupted"]
    assert [t["number"] for t in trials if t["config"]["backend"] == "eager"] == [0]
    assert [t["outcome"] for t in trials if t["config"]["backend"] == "one"][-1] == "ok"


class NoRaces(FakeExecutor):
    """The process of each race dies before a setting is at work."""

    def _several(self, request: Mapping[str, Any]) -> Ending:
        if request["kind"] != "race":
            return super()._several(request)
        return Ending(Outcome.CRASHED, Step.EAGER, "SIGKILL in eager", wall_s=1.0)


def inductor_is_faster_by(factor: float) -> Callable[[Mapping[str, Any]], Ending]:
    speeds = {"eager": 1.0, "inductor": factor}
    return lambda request: measured(speeds[request["config"]["backend"]])


def test_what_no_race_has_checked_is_not_exported(target: Path, typed: Typed) -> None:
    script = NoRaces(inductor_is_faster_by(1.5))
    tune(target, executor=script, space=SearchSpace(batch_sizes=(4,)), trials=3)
    for options in ("", "--to lightning", "-o tuned.json"):
        done = typed("export", *options.split())
        assert done.returncode == 2 and done.stdout == ""
        assert (
            "has not passed all checks, which come with its first race" in done.stderr
        )
    assert not Path("tuned.json").exists()


@pytest.mark.parametrize(("factor", "code"), [(1.04, 1), (1.5, 0)])
def test_a_gate_that_is_not_met_is_exit_code_1(
    target: Path,
    typed: Typed,
    monkeypatch: pytest.MonkeyPatch,
    factor: float,
    code: int,
) -> None:
    executor = FakeExecutor(inductor_is_faster_by(factor))
    monkeypatch.setattr("autocompile.api.LocalExecutor", lambda **_: executor)
    done = typed(
        "tune", str(target), "--progress", "none", "--require-speedup", "1.05", "--json"
    )
    assert done.returncode == code, done.stderr
    assert json.loads(done.stdout)["phases"]["forward"]["answer"]["verdict"] == "faster"
    assert done.stderr == "gate: forward is not surely faster by 1.05x\n" * code


def test_whoever_stops_reading_is_no_failure(work: Path) -> None:
    (work / "runs").mkdir()
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        done = subprocess.run([PROGRAM, "list"], stdout=pipe, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_version_is_shown(typed: Typed) -> None:
    words = typed("--version").stdout.split()
    assert words[0] == "autocompile" and words[1].startswith("0.")
    assert words[1] in ROOT.joinpath("CHANGELOG.md").read_text("utf-8")


# The budget ------------------------------------------------------------------------------

BEGAN_LONG_AGO = """
import sys
from autocompile import cli
cli.BEGAN -= 100
from autocompile.cli.commands import main
sys.argv[0] = "autocompile"
main()
"""


def test_a_budget_counts_from_the_beginning_of_the_program(tmp_path: Path) -> None:
    """Here the imports seem to have taken 100 s, which is more than there is."""
    (tmp_path / "model.py").write_text(MODEL)
    command = [sys.executable, "-c", BEGAN_LONG_AGO, "tune", "model.py"]
    began = time.monotonic()
    done = subprocess.run(
        [*command, "--budget", "60s"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert time.monotonic() - began < 60
    assert "took the whole budget of 60 s" in one_paragraph(done)


@pytest.mark.parametrize(
    "command", ["tune model.py", "verify tuned.json", "suite list.toml"]
)
def test_each_command_with_a_budget_hands_on_when_it_began(
    command: str,
    typed: Typed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import autocompile.cli
    from autocompile.errors import RunError

    seen = []

    def began(*given: object, **more: object) -> None:
        seen.append(more.get("began") or vars(given[-1])["began"])
        raise RunError("that is all")

    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "list.toml").write_text('models = ["model.py"]')
    choice = Choice(CompileConfig(backend="eager"), 4)
    tuned = Tuned({"forward": (choice,)}, fingerprint={}, target="model.py")
    (tmp_path / "tuned.json").write_text(json.dumps(tuned.to_dict()))
    monkeypatch.setattr("autocompile.api.tune_with", began)
    monkeypatch.setattr("autocompile.suite.runner.Runner", began)
    typed(*command.split())
    assert seen == [autocompile.cli.BEGAN]
