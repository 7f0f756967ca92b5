"""``autocompile verify --junit FILE``: the checks as JUnit XML, which CI systems show."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence

from autocompile.commands.verify import Check, faults
from autocompile.report.text import plain

__all__ = ["junit"]


def junit(checks: Sequence[Check], required: Mapping[str, float]) -> str:
    """A test case for each choice: it fails as ``verify`` does, and is skipped where it is open.

    Args:
        checks: of :func:`autocompile.commands.verify.check`.
        required: as for :func:`autocompile.commands.verify.unmet`.
    """
    suite = ElementTree.Element("testsuite", name="autocompile verify", tests=str(len(checks)))
    for one in checks:
        size = "" if one.batch_size is None else f"batch size {one.batch_size}: "
        name = plain(f"{size}{one.setting}")
        case = ElementTree.SubElement(suite, "testcase", classname=plain(one.phase), name=name)
        sentences = faults(one, required)
        for sentence in sentences:
            ElementTree.SubElement(case, "failure", message=plain(sentence))
        if one.is_open and not sentences:
            ElementTree.SubElement(case, "skipped", message=plain(one.message))
    for count, of in (("failures", "failure"), ("skipped", "skipped")):
        suite.set(count, str(sum(case.find(of) is not None for case in suite)))
    ElementTree.indent(suite)
    text = ElementTree.tostring(suite, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'
