"""A machine without a C++ compiler, or whose CXX names none."""

from __future__ import annotations

import pytest
import torch
from torch._inductor import config

from autocompile.runtime.compiling import missing_compiler
from autocompile.trial.measure.environment import backends

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        (None, "no g++ was found (CXX names another compiler, as clang++)"),
        ("no-such-compiler", "CXX=no-such-compiler is no C++ compiler that works"),
        ("/tmp", "CXX=/tmp is no C++ compiler that works"),
    ],
)
def test_inductor_is_left_out_with_the_reason(
    named: str | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    assert missing_compiler(CPU) == ""
    if named:
        monkeypatch.setenv("CXX", named)
    with config.patch({"cpp.cxx": (named or "no-g++-here",)}):
        assert backends(CPU, ["inductor"])["inductor"] == reason
    assert missing_compiler(torch.device("cuda")) == ""
