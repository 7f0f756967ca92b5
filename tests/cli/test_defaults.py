"""Defaults of options in pyproject.toml: found upward, checked, and overruled by what is typed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from autocompile.cli.commands import app
from autocompile.errors import UsageError

Tuned = Callable[..., dict[str, Any]]


@pytest.fixture
def tuned(work: Path, monkeypatch: pytest.MonkeyPatch) -> Tuned:
    """Types ``tune model.py`` and gives the arguments that reach the API."""

    def tune(*args: str) -> dict[str, Any]:
        seen: dict[str, Any] = {}

        def api(target: str, **given: Any) -> None:
            seen.update(given)
            raise typer.Exit

        monkeypatch.setattr("autocompile.api.tune", api)
        done = CliRunner().invoke(app, ["tune", "model.py", *args])
        if done.exception:
            raise done.exception
        return {**seen, "said": done.output}

    return tune


def project(folder: Path, *lines: str) -> Path:
    path = folder / "pyproject.toml"
    path.write_text("\n".join(["[tool.autocompile]", *lines]))
    return path


def test_a_table_gives_defaults_and_what_is_typed_goes_before(work: Path, tuned: Tuned) -> None:
    lines = 'effort = "quick"', 'budget = "2m"', "batch-size = [1, 4]", "fullgraph = true"
    path = project(work, *lines, 'max-memory = "2GiB"', "trials = 7")
    seen = tuned()
    assert (seen["effort"], seen["budget_s"], seen["trials"]) == ("quick", 120.0, 7)
    assert (seen["space"].batch_sizes, seen["space"].fullgraph) == ((1, 4), (True,))
    assert seen["limits"].memory_bytes == 2**31
    assert f"from {path}: --effort quick --budget 2m --batch-size 1,4" in seen["said"]
    typed = tuned("--effort", "full", "--batch-size", "16", "-q")
    assert (typed["effort"], typed["space"].batch_sizes) == ("full", (16,))
    assert (typed["budget_s"], typed["trials"]) == (None, None)  # an effort is a time of its own
    assert typed["said"] == ""
    (work / "space.toml").write_text("backends = ['inductor']\n")
    spaced = tuned("--space", "space.toml")["space"]
    assert (spaced.batch_sizes, spaced.backends) == (None, ("inductor",))
    resumed = tuned("--resume")  # and keeps its own settings
    assert (resumed["effort"], resumed["trials"]) == (None, 7)  # the effort is as it was


def test_the_nearest_table_upward_is_read(
    work: Path, tuned: Tuned, monkeypatch: pytest.MonkeyPatch
) -> None:
    project(work, "seed = 1", 'space = "space.toml"')
    (work / "space.toml").write_text("batch_sizes = [8]")
    inner = work / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "pyproject.toml").write_text("[project]\nname = 'other'\n")
    monkeypatch.chdir(inner)
    seen = tuned()
    assert (seen["seed"], seen["space"].batch_sizes) == (1, (8,))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('efort = "quick"', ["no option --efort", "try: effort ="]),
        ("resume = true", ["no option --resume that takes a value"]),
        ('effort = "heroic"', ["effort: ", "heroic"]),
        ('budget = "soon"', ["budget: 'soon' is not a duration (try 5ms, 90s or 10m)"]),
        ("trials = 0", ["trials: ", "1"]),
        ("effort = ['quick']", ["effort is a list, and --effort takes one value"]),
        ("seed = {a = 1}", ["seed is not a text, a number or a list of them"]),
        ("seed = ", ["is not TOML"]),
    ],
)
def test_a_mistake_names_the_file_and_the_key(
    work: Path, tuned: Tuned, line: str, words: list[str]
) -> None:
    path = project(work, line)
    with pytest.raises(UsageError) as error:
        tuned()
    text = error.value.text()
    assert text.startswith(str(path))
    assert all(word in text for word in words), text
    assert "Examples:" in CliRunner().invoke(app, ["tune", "--help"]).output


def test_a_mistake_in_a_dimension_is_told_after_the_file_that_it_is_from(
    work: Path, tuned: Tuned
) -> None:
    project(work, "batch-size = [0]")
    with pytest.raises(UsageError, match="batch size 0 is below 1"):
        tuned()


@pytest.mark.parametrize("text", ["[project\n", "[tool.other]\neffort = 'quick'\n"])
def test_a_file_that_is_not_about_this_tool_is_passed_over(
    work: Path, tuned: Tuned, text: str
) -> None:
    (work / "pyproject.toml").write_text(text)
    seen = tuned()
    assert (seen["effort"], seen["timeout_s"], seen["said"]) == (None, 300.0, "")


URL = "postgresql://tuner:hunter2@db/studies"


@pytest.mark.parametrize("value", [f'"{URL}"', f'["{URL}"]', f'{{url = "{URL}"}}', f'[["{URL}"]]'])
def test_a_password_is_never_printed(work: Path, tuned: Tuned, value: str) -> None:
    project(work, f"storage = {value}")
    try:
        said = tuned()["said"]
    except UsageError as error:
        said = error.text()
    assert "storage" in said and "hunter2" not in said
