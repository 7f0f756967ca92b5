"""What ``.ci/run`` says and ends with: the script itself, in a project of three tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

# Stands in for the interpreter that makes the environment: nothing is downloaded.
PYTHON = f"""#!/bin/sh
mkdir -p .venv/bin
printf '#!/bin/sh\\nexec {sys.executable} "$@"\\n' > .venv/bin/python
printf '#!/bin/sh\\n' > .venv/bin/pip
printf '#!/bin/sh\\n' > .venv/bin/mypy
printf '#!/bin/sh\\ntest ! -e lint-fails\\n' > .venv/bin/ruff
chmod +x .venv/bin/*
"""
TESTS = """
from pathlib import Path

def test_passes():
    assert True

def test_passes_at_the_second_try():
    was_tried = Path("tried").exists()
    Path("tried").touch()
    assert was_tried

def test_fails():
    assert not Path("fails").exists()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for folder in (".ci", "bin"):
        (tmp_path / folder).mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    (tmp_path / ".ci" / "wheel").write_text("#!/bin/sh\n")  # a project without one
    (tmp_path / ".ci" / "wheel").chmod(0o755)
    (tmp_path / "bin" / "python3").write_text(PYTHON)
    (tmp_path / "bin" / "python3").chmod(0o755)
    (tmp_path / "test_three.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def ran(project: Path) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "CI_"))}
    kept["PATH"] = f"{project / 'bin'}:{kept['PATH']}"
    command = [str(project / ".ci" / "run")]
    return subprocess.run(command, env=kept, capture_output=True, text=True)


def test_a_test_that_passes_at_the_second_try_is_counted_and_named(
    project: Path,
) -> None:
    done = ran(project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-2:] == [
        "ci: 1 tests passed only at the second try:",
        "test_three.py::test_passes_at_the_second_try",
    ]


def test_nothing_is_tried_again_where_all_pass_at_once(project: Path) -> None:
    (project / "tried").touch()
    done = ran(project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "ci: 0 tests passed only at the second try"


def test_a_test_that_fails_twice_fails_it(project: Path) -> None:
    (project / "fails").touch()
    done = ran(project)
    assert done.returncode == 1
    assert "only at the second try" not in done.stdout


def test_lint_comes_before_the_tests(project: Path) -> None:
    (project / "lint-fails").touch()
    done = ran(project)
    assert done.returncode == 1
    assert "passed" not in done.stdout and not (project / "tried").exists()
