"""The checks of ``autocompile verify`` as CI systems show them."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from autocompile.commands.verify import Check, Verified
from autocompile.report.text import plain

__all__ = ["github", "junit"]


def junit(found: Verified) -> str:
    """JUnit XML: a case for each choice, failed as ``verify`` is, skipped where it is open."""
    suite = ElementTree.Element(
        "testsuite", name="autocompile verify", tests=str(len(found.checks))
    )
    for one in found.checks:
        size = "" if one.batch_size is None else f"batch size {one.batch_size}: "
        name = plain(f"{size}{one.setting}")
        case = ElementTree.SubElement(suite, "testcase", classname=plain(one.phase), name=name)
        faults = one.faults(found.required)
        for fault in faults:
            ElementTree.SubElement(case, "failure", message=plain(fault))
        if one.is_open and not faults:
            ElementTree.SubElement(case, "skipped", message=plain(one.message))
    for count, of in (("failures", "failure"), ("skipped", "skipped")):
        suite.set(count, str(sum(case.find(of) is not None for case in suite)))
    ElementTree.indent(suite)
    text = ElementTree.tostring(suite, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def github(found: Verified) -> list[str]:
    """GitHub's workflow commands: an error for each reason to fail, a warning where it is open."""
    lines = []
    for one in found.checks:
        faults = one.faults(found.required)
        lines += [_annotation("error", one, fault) for fault in faults]
        if one.is_open and not faults:
            lines.append(_annotation("warning", one, f"open: {one.message}"))
    return lines


def _annotation(level: str, one: Check, message: str) -> str:
    title = plain(f"{one.where}: {one.setting}")
    return f"::{level} title={_escaped(title, ':,')}::{_escaped(plain(message))}"


def _escaped(text: str, more: str = "") -> str:
    """Percent-encoded as the runner decodes it; in a property a colon and a comma end the value."""
    return "".join(f"%{ord(c):02X}" if c in f"%\r\n{more}" else c for c in text)
