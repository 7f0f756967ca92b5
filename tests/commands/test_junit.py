"""The checks of ``verify`` as JUnit XML."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from autocompile.commands.junit import junit
from autocompile.commands.verify import Check

NOW = {"value": 1.2, "low": 1.1, "high": 1.3}


def test_a_check_fails_as_verify_does() -> None:
    checks = [
        Check("forward", 4, "inductor <a>", "fastest", speedup=NOW, graphs=1),
        Check("forward", 16, "inductor", "failed", "wrong_output in verify: \x1b[31mdiffers"),
        Check("forward", 64, "inductor", "open", "there was no time to try it"),
        Check("optimizer_step", None, "fused", "fastest", speedup=NOW, graphs=3),
    ]
    suite = ElementTree.fromstring(junit(checks, {"max-graphs": 2}).encode())
    assert suite.attrib == {
        "name": "autocompile verify",
        "tests": "4",
        "failures": "2",
        "skipped": "1",
    }
    first, second, third, fourth = suite
    assert (first.get("classname"), first.get("name")) == ("forward", "batch size 4: inductor <a>")
    assert len(first) == 0
    assert [child.get("message") for child in second] == ["failed: wrong_output in verify: differs"]
    assert [(child.tag, child.get("message")) for child in third] == [
        ("skipped", "there was no time to try it")
    ]
    assert "max-graphs is 3, and 2 is required" in str(fourth[0].get("message"))
    assert fourth.get("name") == "fused"
