"""A machine without a C++ compiler."""

from __future__ import annotations

import pytest
import torch
from torch._inductor import config

from autocompile.runtime.compiling import missing_compiler
from autocompile.trial.measure.environment import backends

CPU = torch.device("cpu")


def test_inductor_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_compiler(CPU) == ""
    monkeypatch.setattr(config.cpp, "cxx", ("no-such-compiler",))
    assert "no C++ compiler" in backends(CPU, ["inductor"])["inductor"]
    assert missing_compiler(torch.device("cuda")) == ""
