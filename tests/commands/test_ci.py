"""The checks of ``verify`` as GitHub Actions and other CI systems show them."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

from autocompile.commands.verify import Check, Verified, github, junit
from autocompile.report.markdown import verified_to_markdown

NOW = {"value": 1.2, "low": 1.1, "high": 1.3}
MACHINE = {"torch": "2.13.0", "device": "cpu", "device_name": "a CPU", "threads": 1}
CHECKS = [
    Check("forward", 4, "inductor <a>", "fastest", speedup=NOW, graphs=1),
    Check("forward", 16, "a, b: 100%", "failed", "off by 5 %: 1, 2\r\n::error::\x1b[31mmore"),
    Check("forward", 64, "inductor | x", "open", "there was no time to try it"),
    Check("optimizer_step", None, "fused", "fastest", speedup=NOW, graphs=3),
]
FOUND = Verified(CHECKS, {"max-graphs": 2}, MACHINE, [], False)
GATE = "optimizer_step: max-graphs is 3, and 2 is required"


def read(command: str) -> tuple[str, str, str]:
    """Level, title and message, as the runner reads them."""
    found = re.fullmatch(r"::(\w+) title=([^:,\r\n]*)::([^\r\n]*)", command)
    assert found is not None, command
    level, *texts = found.groups()
    for code, character in (("3A", ":"), ("2C", ","), ("0D", "\r"), ("0A", "\n"), ("25", "%")):
        texts = [text.replace(f"%{code}", character) for text in texts]
    return level, texts[0], texts[1]


def test_on_github_a_reason_to_fail_is_an_error_and_an_open_check_a_warning() -> None:
    commands = github(FOUND)
    assert [read(command) for command in commands] == [
        ("error", "forward at 16: a, b: 100%", "failed: off by 5 %: 1, 2 ::error::more"),
        ("warning", "forward at 64: inductor | x", "open: there was no time to try it"),
        ("error", "optimizer_step: fused", GATE),
    ]
    # What ends a property is escaped once.
    start = "::error title=forward at 16%3A a%2C b%3A 100%25::failed: off by 5 %25"
    assert commands[0].startswith(start)


def test_the_summary_is_a_table_of_the_settings() -> None:
    lines = verified_to_markdown(FOUND.to_dict()).splitlines()
    rows = [line for line in lines if line.startswith("| ")]
    assert len(rows) == 2 + len(CHECKS)
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 7 for row in rows)
    assert lines[-1] == f"- gate: {GATE}"


def test_a_case_of_junit_fails_as_verify_does() -> None:
    suite = ElementTree.fromstring(junit(FOUND).encode())
    counts = {"tests": "4", "failures": "2", "skipped": "1"}
    assert suite.attrib == {"name": "autocompile verify", **counts}
    assert [(case.get("classname"), case.get("name")) for case in suite] == [
        ("forward", "batch size 4: inductor <a>"),
        ("forward", "batch size 16: a, b: 100%"),
        ("forward", "batch size 64: inductor | x"),
        ("optimizer_step", "fused"),
    ]
    assert [[(child.tag, child.get("message")) for child in case] for case in suite] == [
        [],
        [("failure", "failed: off by 5 %: 1, 2 ::error::more")],
        [("skipped", "there was no time to try it")],
        [("failure", GATE)],
    ]
