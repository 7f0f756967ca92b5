"""The real tune on recorded trials, as autocompile.testing plays them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest
from conftest import ROOT
from recorded_runs import unpack

import autocompile
from autocompile.errors import RunError, UsageError
from autocompile.settings.config import DEFAULT_INDUCTOR, EAGER, CompileConfig, Setting
from autocompile.testing import Recorded, failed, measured, replay

FAST = CompileConfig(mode="max-autotune")
BROKEN = CompileConfig("cudagraphs")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a recorded run."""
    unpack("inductor", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def table(*sizes: int, compile_s: float = 20.0) -> Recorded:
    """Four settings at each batch size, of which one fails and one is the best."""
    endings = {
        EAGER: measured(1.0),
        DEFAULT_INDUCTOR: measured(1.3, compile_s=2.0),
        FAST: measured(1.5, compile_s=compile_s),
        BROKEN: failed("crashed"),
    }
    return Recorded({Setting(c, size): e for size in sizes for c, e in endings.items()})


def tried(result: autocompile.Result) -> set[CompileConfig]:
    return {record.config for record in result.trials}


@pytest.mark.usefixtures("folder")
def test_a_recorded_run_played_again_finds_what_it_had_found() -> None:
    recorded, before = Recorded.read("inductor"), autocompile.load("inductor")
    result = replay(recorded, budget_s=300)
    assert result.verdict == before.verdict == {"forward": "faster"}
    assert result.config == before.config
    # The same sets of fresh processes, and so the same figure.
    best = result.report.phases["forward"].answer.best
    assert best and best.confirmed_processes == 3
    known = before.speedup["forward"].value
    assert result.speedup["forward"].value == pytest.approx(known, rel=0.01)
    assert tried(result) <= {setting.config for setting in recorded.trials}
    assert result.environment["device_name"] == before.environment["device_name"]


def test_five_minutes_pass_in_seconds() -> None:
    began = time.monotonic()
    result = replay(table(1, 4, 16, 64, compile_s=70.0), budget_s=300)
    assert 200 < result.report.wall_s <= 300
    assert time.monotonic() - began < 30, "about one, on a machine that is at rest"


@pytest.mark.parametrize(("budget_s", "best"), [(300, FAST), (30, DEFAULT_INDUCTOR)])
def test_a_budget_leaves_out_what_compiles_too_long(
    budget_s: float, best: CompileConfig
) -> None:
    result = replay(table(16, compile_s=60.0), budget_s=budget_s)
    assert result.config == {"forward": best}


@pytest.mark.parametrize(
    "sampler", ["portfolio", "random", optuna.samplers.TPESampler()]
)
def test_any_sampler_is_tried_on_a_table_and_finds_its_best_setting(
    sampler: str | optuna.samplers.BaseSampler,
) -> None:
    result = replay(table(16), sampler=sampler)
    assert result.config == {"forward": FAST}
    assert result.speedup["forward"].value == pytest.approx(1.5, rel=0.02)
    assert tried(result) == {EAGER, DEFAULT_INDUCTOR, FAST, BROKEN}
    (lost,) = (r for r in result.trials if not r.ok)
    assert (lost.config, lost.outcome.value) == (BROKEN, "crashed")


def test_a_race_plays_the_recorded_sets_in_turn() -> None:
    one = table(16)
    speeds = (1.40, 1.50, 1.60)
    races = {Setting(FAST, 16): [measured(speed) for speed in speeds]}
    result = replay(Recorded(one.trials, races))
    raced = [r for r in result.trials if r.race and r.config == FAST]
    seen = [r.measurement.speedup.value for r in raced if r.measurement]
    expected = [speeds[n % 3] for n in range(len(seen))]
    assert len(seen) >= 3 and seen == pytest.approx(expected, rel=0.005)


def test_jobs_run_side_by_side_by_the_clock() -> None:
    alone, beside = (
        replay(table(1, 4, 16), slots=slots, effort="full") for slots in (1, 3)
    )
    # Eager mode and plain torch.compile() of the first batch size have the machine to themselves.
    may_overlap = [
        r.wall_s
        for r in alone.trials
        if r.role == "search" and not r.config.is_eager and r.wall_s
    ]
    saved_s = alone.report.wall_s - beside.report.wall_s
    assert saved_s > 0.5 * (sum(may_overlap) - max(may_overlap))


def test_a_run_without_a_trial_says_so(
    folder: Path,
) -> None:
    for path in (folder / "runs" / "inductor" / "trials").glob("*/result.json"):
        path.unlink()
    with pytest.raises(RunError, match="no trial that has ended"):
        Recorded.read("inductor")


@pytest.mark.usefixtures("folder")
def test_torch_is_not_imported(folder: Path) -> None:
    code = (
        "import sys; from autocompile import testing; "
        "testing.replay('inductor', budget_s=60); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=folder)


def test_the_examples_of_the_documents_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "python.md").read_text("utf-8")
    section = page.split("## Trying a sampler or a budget on a recorded run")[1]
    examples = re.findall(r"```python\n(.*?)```", section, re.S)
    assert len(examples) == 2
    for example in examples:
        exec(example, {})
    said = capsys.readouterr().out
    assert "300 tpe forward inductor max-autotune · frozen weights" in said
    assert "torch.compile(" in said or "plain torch.compile()" in said


def test_a_phase_that_was_not_recorded_is_named() -> None:
    with pytest.raises(UsageError, match="'typo' was not recorded"):
        replay(table(4), phases=("typo",))


def test_nothing_to_play_is_said_in_a_sentence() -> None:
    with pytest.raises(UsageError, match="there is no trial to play"):
        replay(Recorded({}))


def test_settings_of_a_phase_that_the_probe_does_not_have_are_refused() -> None:
    trials = {Setting(EAGER, 4, "train_step"): measured(1.0)}
    with pytest.raises(UsageError, match="settings of train_step were recorded"):
        replay(Recorded(trials))


def test_a_run_that_nobody_asked_for_a_folder_of_is_gone_with_its_process(
    tmp_path: Path,
) -> None:
    code = (
        "from autocompile.testing import Recorded, measured, replay\n"
        "from autocompile.settings.config import EAGER, Setting\n"
        "trials = {Setting(EAGER, 4, 'forward'): measured(1.0)}\n"
        "replay(Recorded(trials))\n"
    )
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)
    assert list(tmp_path.glob("replay-*")) == []
