"""README, CI and examples say what is true."""

from __future__ import annotations

import ast
import json
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT, Bench
from typer.testing import CliRunner

from autocompile.cli.commands import app
from autocompile.commands.verify import REQUIREMENTS
from autocompile.settings.config import CompileConfig
from autocompile.settings.option import named_numbers
from autocompile.store.record import RunFolder

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
MODELS = [path for path in EXAMPLES if path.name not in ("api.py", "by_hand.py")]
pytestmark = pytest.mark.timeout(900)  # compilers on a slow machine
README = (ROOT / "README.md").read_text("utf-8")
DOCUMENTS = README + "".join(
    p.read_text("utf-8") for p in sorted((ROOT / "docs").glob("*.md"))
)


def run(*command: str, cwd: Path, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=880, **more
    )


def help_of(*command: str) -> str:
    """All options of a command that has many, or the help of another."""
    how = "--help-all" if command in (("tune",), ("suite",)) else "--help"
    return CliRunner().invoke(app, [*command, how], terminal_width=80).output


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_each_example_is_short_and_says_how_to_run_it(path: Path) -> None:
    text = path.read_text("utf-8")
    assert len(text.splitlines()) <= 75  # lines of 88 columns: one and a half screens
    assert f"examples/{path.name}" in (ast.get_docstring(ast.parse(text)) or "")


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("ppo_breakout", "aot_eager"),  # which needs no C++ compiler
        *(pytest.param(p.stem, "inductor", marks=pytest.mark.slow) for p in MODELS),
    ],
)
def test_each_example_compiles_and_is_right(
    name: str, backend: str, typed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "autocompile.commands.diagnose.DEFAULT_INDUCTOR", CompileConfig(backend)
    )
    forward = "forward_exploration" if name == "ppo_breakout" else "forward"
    phases = [forward, "optimizer_step"]  # not the updates of RLlib's learner: long
    options = ["--batch-size", "2", "--phase", ",".join(phases), "--json"]
    done = typed("check", f"{ROOT}/examples/{name}.py", *options)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["phases"]
    assert [(phase, row["outcome"]) for phase, row in rows.items()] == [
        (p, "ok") for p in phases
    ]


STUDIES = """
import json, sys

for folder, names in json.load(sys.stdin).items():
    sys.path[0], before = folder, set(sys.modules)
    for name in names:
        __import__(name)
    for name in set(sys.modules) - before:  # another study's may have the same name
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(folder):
            del sys.modules[name]
"""


def test_the_scripts_of_studies_fit_the_code() -> None:
    """What they take from the package, and from one another, is there."""
    found = {
        str(folder): [
            p.stem for p in sorted(folder.glob("*.py")) if p.stem != "plot"
        ]  # matplotlib
        for folder in sorted((ROOT / "studies").iterdir())
        if folder.is_dir()
    }
    assert found and all(found.values())
    done = run(sys.executable, "-c", STUDIES, cwd=ROOT, input=json.dumps(found))
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_api_example_runs(work: Path) -> None:
    done = run(sys.executable, str(ROOT / "examples" / "api.py"), cwd=work)
    assert done.returncode == 0, done.stderr
    assert "against eager" in done.stdout
    assert done.stdout.rstrip().endswith("(16, 256)")


SLOW = """
import torch
from torch._dynamo import register_backend

def get_model():
    return Slow()

def get_inputs(batch_size):
    return (torch.ones(batch_size, 4),)

class Slow(torch.nn.Module):
    def forward(self, x):
        for _ in range(64):
            x = x + 1
        return x

@register_backend
def folds(graph, inputs):
    return lambda x: (x + 64,)
"""


def test_the_loop_by_hand_runs(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a model whose backend is surely faster, with trials of the tests' own executor."""
    by_hand = runpy.run_path(str(ROOT / "examples" / "by_hand.py"))
    run = RunFolder(tmp_path / "run")
    run.create()
    slow = tmp_path / "slow.py"
    slow.write_text(SLOW)
    result = by_hand["tune"](slow, ("folds",), run, bench.executor)
    told = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    searched = [record for record in result.trials if record.role == "search"]
    assert 2 <= len(searched) <= by_hand["TRIALS"]
    assert told.count("search") == len(searched) and told.count("confirm") >= 3
    assert {record.race for record in result.trials} == {None, 1, 2, 3}
    assert all(record.ok for record in result.trials)
    assert result.verdict["forward"] == "faster"
    assert 'backend="folds"' in result.export("python")
    assert len(run.read()[0]) == len(result.trials)


def test_ci_runs_the_readme_s_last_commands_to_the_letter() -> None:
    *_, block = re.findall(r"```bash\n(.*?)\n```", README, re.S)
    lines = (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
    places = [lines.index(command) for command in block.splitlines()]
    assert len(places) == 3 and places == sorted(places)


def test_the_documents_name_every_command_and_only_options_that_exist() -> None:
    shown = help_of()
    commands = re.findall(r"^│ (\w+) ", shown.split("─ Start here ─")[1], re.M)
    named = "tune init check doctor show list export verify suite record clean"
    assert commands == named.split()
    known = shown + "".join(map(help_of, commands))
    for command in commands:
        assert f"autocompile {command}" in README
    for option in set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", _typed(DOCUMENTS))):
        assert option in known, option


def _typed(text: str) -> str:
    """What stands in code spans, or behind the name of the command."""
    spans = re.findall(r"`(-[^`]+|autocompile [^`]+)`", text)
    return "\n".join([*spans, *re.findall(r"autocompile \w+ .*", text)])


def test_the_documents_python_is_python() -> None:
    for block in re.findall(r"```python\n(.*?)\n```", DOCUMENTS, re.S):
        ast.parse(block)


def test_the_workflow_of_ci_is_valid_and_uses_options_that_exist() -> None:
    blocks = re.findall(r"```yaml\n(.*?)\n```", DOCUMENTS, re.S)
    (text,) = [block for block in blocks if "runs-on" in block]
    workflow = yaml.safe_load(text)
    assert True in workflow  # YAML 1.1 reads the key "on" so
    (job,) = workflow["jobs"].values()
    assert {"runs-on", "steps"} <= job.keys()
    assert all(("run" in step) != ("uses" in step) for step in job["steps"])
    typed = [shlex.split(step["run"]) for step in job["steps"] if "run" in step]
    ((_, command, *rest),) = [words for words in typed if words[0] == "autocompile"]
    options = [word for word in rest if word.startswith("--")]
    assert all(
        re.search(rf"^│ +{option}\b", help_of(command), re.M) for option in options
    )
    required = rest[rest.index("--require") + 1]
    assert named_numbers("--require", [required], REQUIREMENTS)


def test_the_clusters_shown_are_valid() -> None:
    text = (ROOT / "docs" / "cluster.md").read_text("utf-8")
    kube, up = map(yaml.safe_load, re.findall(r"```yaml\n(.*?)\n```", text, re.S))
    assert kube["kind"] == "RayCluster"
    for group in kube["spec"]["workerGroupSpecs"]:
        (container,) = group["template"]["spec"]["containers"]
        assert {"name", "image", "resources"} == container.keys()
        assert group["minReplicas"] == group["replicas"] == group["maxReplicas"]
    assert up["head_node_type"] in up["available_node_types"]


def test_links_between_documents_lead_somewhere() -> None:
    for path in (
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("studies/**/*.md"),
    ):
        for link in re.findall(r"\]\(([^)#:]+)\)", path.read_text("utf-8")):
            assert (path.parent / link).exists(), f"{path.relative_to(ROOT)}: {link}"


def test_the_readme_fits_a_screen() -> None:
    assert len(README.split()) <= 650


def test_every_page_opens_with_a_sentence_and_is_short() -> None:
    for path in (ROOT / "docs").glob("*.md"):
        title, _, first, *_ = lines = path.read_text("utf-8").splitlines()
        assert title.startswith("# ") and re.match(r"[\w`*]", first), path.name
        assert len(lines) <= 130, path.name


def test_every_study_opens_with_its_answer_and_is_in_the_index() -> None:
    index = (ROOT / "studies" / "README.md").read_text("utf-8")
    for path in (ROOT / "studies").glob("*/README.md"):
        title, _, first, *_ = path.read_text("utf-8").splitlines()
        assert title.startswith("# ") and re.match(r"[A-Z]", first), path.parent.name
        assert f"({path.parent.name}/README.md)" in index


def test_the_changelog_and_the_architecture_are_there() -> None:
    assert (ROOT / "CHANGELOG.md").read_text("utf-8").count("\n- ") <= 13
    # Ten minutes of reading. Words, since fewer lines could just be longer ones.
    assert len((ROOT / "ARCHITECTURE.md").read_text("utf-8").split()) <= 1700
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    _, drawing, *_ = text.split("```")
    for init in (ROOT / "autocompile").glob("*/__init__.py"):
        folder = init.parent.name
        assert f"`{folder}/" in text or re.search(rf"\b{folder}\b", drawing), folder


def test_what_is_said_to_be_installed_can_be_installed() -> None:
    """The package is on no index: hints name what is, in the versions of the extras."""
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    sources = [p.read_text("utf-8") for p in (ROOT / "autocompile").rglob("*.py")]
    pages = [
        p.read_text("utf-8") for p in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"))
    ]
    seen = 0
    for text in (*sources, *pages):
        assert not re.search(r"pip install (--upgrade )?[\"']?torch-autocompile", text)
        for pinned in re.findall(r"pip install ['\"]([\w-]+[>=]=[\d.*]+)['\"]", text):
            assert f'"{pinned}"' in project, pinned
            seen += 1
    assert seen >= 7
