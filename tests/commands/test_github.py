"""The checks of ``verify`` as GitHub Actions shows them."""

from __future__ import annotations

import re

from autocompile.commands.github import workflow_commands
from autocompile.commands.verify import Check
from autocompile.report.markdown import verified_to_markdown

NOW = {"value": 1.2, "low": 1.1, "high": 1.3}
CHECKS = [
    Check("forward", 4, "inductor", "fastest", speedup=NOW, graphs=1),
    Check("forward", 16, "a, b: 100%", "failed", "off by 5 %: 1, 2\r\n::error::\x1b[31mmore"),
    Check("forward", 64, "inductor | x", "open", "there was no time to try it"),
    Check("optimizer_step", None, "fused", "fastest", speedup=NOW, graphs=3),
]


def read(command: str) -> tuple[str, str, str]:
    """Level, title and message, as the runner reads them."""
    found = re.fullmatch(r"::(\w+) title=([^:,\r\n]*)::([^\r\n]*)", command)
    assert found is not None, command
    level, *texts = found.groups()
    for code, character in (("3A", ":"), ("2C", ","), ("0D", "\r"), ("0A", "\n"), ("25", "%")):
        texts = [text.replace(f"%{code}", character) for text in texts]
    return level, texts[0], texts[1]


def test_each_reason_to_fail_is_an_error_and_an_open_check_a_warning() -> None:
    assert [read(command) for command in workflow_commands(CHECKS, {"max-graphs": 2})] == [
        ("error", "forward at 16: a, b: 100%", "failed: off by 5 %: 1, 2 ::error::more"),
        ("warning", "forward at 64: inductor | x", "open: there was no time to try it"),
        ("error", "optimizer_step: fused", "optimizer_step: max-graphs is 3, and 2 is required"),
    ]


def test_what_ends_a_property_is_escaped_once() -> None:
    (error,) = workflow_commands([CHECKS[1]], {})
    assert error.startswith("::error title=forward at 16%3A a%2C b%3A 100%25::failed: off by 5 %25")


def test_the_summary_is_a_table_of_the_settings() -> None:
    found = {
        "checks": [one.to_dict() for one in CHECKS],
        "unmet": ["optimizer_step: max-graphs is 3, and 2 is required"],
        "environment": {"torch": "2.13.0", "device": "cpu", "device_name": "a CPU", "threads": 1},
        "differences": [],
    }
    lines = verified_to_markdown(found).splitlines()
    rows = [line for line in lines if line.startswith("| ")]
    assert len(rows) == 2 + len(CHECKS)
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 7 for row in rows)
    assert lines[-1] == "- gate: optimizer_step: max-graphs is 3, and 2 is required"
