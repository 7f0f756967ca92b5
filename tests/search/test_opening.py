"""What a run opens with: the first look at its target."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeExecutor, failed, measured, probed
from scripts import is_eager, tune

from autocompile.errors import TargetError
from autocompile.execute.executor import Ending, Job
from autocompile.settings.searchspace import SearchSpace

SIZES = SearchSpace(batch_sizes=(1, 4), backends=("inductor",))
FAILS = failed("runtime_error", "eager", "RuntimeError: no four")


class Probes(FakeExecutor):
    """A target whose eager mode fails at some batch sizes."""

    def __init__(self, broken: tuple[int, ...], ending: Ending = FAILS) -> None:
        super().__init__(self.decide, probed())
        self.broken, self.ending = broken, ending
        self.looked_at: list[int] = []

    def decide(self, request: Mapping[str, Any]) -> Ending:
        if request["batch_size"] in self.broken:
            return self.ending
        return measured(1.0 if is_eager(request) else 1.5)

    def start(self, job: Job) -> None:
        request = json.loads((job.folder / "request.json").read_text("utf-8"))
        if request["kind"] == "probe":
            self.looked_at.append(request["batch_size"])
            is_broken = request["batch_size"] in self.broken
            self._probe = self.ending if is_broken else probed()
        super().start(job)


def test_a_batch_size_in_which_eager_mode_fails_leaves_the_others(
    target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    executor = Probes((4,))
    result = tune(target, executor=executor, space=SIZES)
    assert executor.looked_at == [4, 1]
    answers = {a.batch_size: a for a in result.report.phases["forward"].answers}
    assert answers[1].verdict == "faster"
    assert answers[4].verdict == "failed"
    assert "no four" in answers[4].reason
    assert "at batch size 4: the eager model fails" in capsys.readouterr().err
    assert "Failed" in str(result)
    assert "at batch size 4: eager mode itself fails" in str(result)


def test_a_target_that_fails_at_every_batch_size_is_told_by_the_largest(
    target: Path,
) -> None:
    executor = Probes((1, 4))
    with pytest.raises(TargetError, match="nothing to tune"):
        tune(target, executor=executor, space=SIZES)
    assert executor.looked_at == [4, 1]


def test_a_target_that_cannot_be_imported_is_looked_at_once(target: Path) -> None:
    executor = Probes((1, 4), failed("import_error", "import", "ImportError: no"))
    with pytest.raises(TargetError, match="cannot be imported"):
        tune(target, executor=executor, space=SIZES)
    assert executor.looked_at == [4]
