"""Runs of another version: they open, or the error says which version opens them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from autocompile.api import load, tune
from autocompile.cli import commands as cli
from autocompile.errors import RunError
from autocompile.execute.executor import Ending
from autocompile.space.space import SearchSpace
from autocompile.testing import FakeExecutor, measured

SPACE = SearchSpace(backends=("inductor",), batch_sizes=(4,))
Edit = Callable[[dict[str, Any]], Any]


def script(request: Mapping[str, Any]) -> Ending:
    return measured(1.0 if request["config"]["backend"] == "eager" else 1.5, noise=0.005)


def edit(path: Path, change: Edit) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of this version, made once."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "net.py").write_text("never run: the executor is a fake")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        tune("net.py", executor=FakeExecutor(script), space=SPACE)
    return folder


@pytest.fixture
def run(finished: Path, work: Path) -> Path:
    """The folder of a copy of it."""
    shutil.copytree(finished, work, dirs_exist_ok=True)
    return Path("runs/net-0001")


def results(run: Path) -> list[Path]:
    return sorted(run.glob("trials/*/result.json"))


def from_the_future(run: Path, version: str = "9.1.0") -> None:
    edit(run / "run.json", lambda data: data["environment"].update(autocompile=version))


def test_nothing_is_said_of_a_run_of_this_version(run: Path) -> None:
    assert load("last").notice == load("last").to_dict()["notice"] == ""


def test_a_new_key_at_its_default_is_ignored_and_told(run: Path) -> None:
    before = load("last")
    from_the_future(run)
    for path in results(run):
        edit(path, lambda data: data["config"].update(tiling="auto"))
        edit(path, lambda data: data["measurement"].update(joules=[1.0, 2.0]))
        edit(path, lambda data: data.update(weather="fine"))
    shown = load("last")
    assert shown.trials == before.trials
    assert shown.config == before.config
    assert shown.notice == (
        "this run was made with autocompile 9.1.0, this is 0.1.0; ignored, since this version does "
        "not know it: weather, measurement.joules, config.tiling"
    )


def test_a_setting_that_is_not_known_is_left_out_and_told(run: Path) -> None:
    from_the_future(run)
    eager, *others = results(run)
    for path in (eager, *others):
        edit(path, lambda data: data["config"].update(tiling="auto"))
    edit(others[0], lambda data: data["config"].update(tiling="wide"))
    edit(others[1], lambda data: data["config"].update(autocast="float4"))
    edit(others[2], lambda data: data.update(outcome="melted"))
    shown = load("last")
    assert [r.number for r in shown.trials] == [0, *range(4, len(others) + 1)]
    assert "trial 1 is left out: a compile setting has no key 'tiling'" in shown.notice
    assert "trial 2 is left out: autocast 'float4' is none of" in shown.notice
    assert "trial 3 is left out: in its result.json 'melted'" in shown.notice
    assert shown.verdict["forward"] != "failed"


def test_many_trials_are_named_in_one_short_notice(run: Path) -> None:
    for path in results(run)[1:]:
        edit(path, lambda data: data["config"].update(tiling="wide"))
    count = len(results(run)) - 1
    assert count > 8
    text = load("last").notice
    assert f"trials 1, 2, 3, 4, 5, 6, 7, 8 and {count - 8} more are left out" in text
    assert "this run was made with" not in text, "it is of the same version"


def test_a_damaged_result_is_told(run: Path) -> None:
    results(run)[1].write_text('{"schema": 1, "numb')
    edit(results(run)[2], lambda data: data.pop("schema"))
    edit(results(run)[3], lambda data: data.pop("config"))
    text = load("last").notice
    assert "trial 1 is left out: its result.json is damaged" in text
    assert "trial 2 is left out: in its result.json the schema is None" in text
    assert "trial 3 is left out: in its result.json 'config'" in text


def test_a_trial_that_has_not_ended_is_no_loss(run: Path) -> None:
    results(run)[-1].unlink()
    assert load("last").notice == ""


def test_what_was_asked_for_in_a_newer_version_is_shown_and_not_resumed(run: Path) -> None:
    from_the_future(run)
    edit(run / "run.json", lambda data: data["plan"]["limits"].update(joules=None))
    assert load("last").notice == ""
    edit(run / "run.json", lambda data: data["plan"]["limits"].update(joules=3.0))
    edit(run / "run.json", lambda data: data["plan"]["space"].update(tiling=["auto", "wide"]))
    assert "does not know these options: space.tiling, limits.joules" in load("last").notice
    with pytest.raises(RunError, match=r"does not know: space\.tiling, limits\.joules"):
        tune("net.py", executor=FakeExecutor(script), resume=True)


def test_a_newer_schema_names_the_version_that_reads_it(run: Path) -> None:
    from_the_future(run)
    edit(run / "run.json", lambda data: data.update(schema=2, plan={"target": "net.py"}))
    for attempt in (
        lambda: load("last"),
        lambda: tune("net.py", executor=FakeExecutor(script), resume=True),
    ):
        with pytest.raises(RunError, match=r"schema 2 and was written by autocompile 9\.1\.0") as e:
            attempt()
        assert "pip install --upgrade 'torch-autocompile>=9.1.0'" in e.value.text()


def test_a_result_of_a_newer_schema_is_refused(run: Path) -> None:
    edit(results(run)[1], lambda data: data.update(schema=2))
    with pytest.raises(RunError, match="schema 2 and was written by a newer"):
        load("last")


@pytest.mark.parametrize("schema", [None, "1", True, 0])
def test_a_file_of_another_program_is_not_taken_for_a_run(run: Path, schema: Any) -> None:
    edit(run / "run.json", lambda data: data.update(schema=schema))
    with pytest.raises(RunError, match="was not written by autocompile"):
        load("last")


@pytest.mark.parametrize("command", [["show"], ["show", "--json"], ["export", "--to", "json"]])
def test_the_commands_print_the_notice_beside_their_output(run: Path, command: list[str]) -> None:
    results(run)[1].write_text("")
    done = CliRunner().invoke(cli.app, command)
    assert done.exit_code == 0, done.output
    assert done.stderr == "note: trial 1 is left out: its result.json is damaged\n"
    assert "note:" not in done.stdout
