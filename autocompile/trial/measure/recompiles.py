"""Why Dynamo compiled again, in plain words, and what a user can change.

The texts are those of the guards of torch 2.13 that fail; one that is not known here is given as it
is.
"""

from __future__ import annotations

import re

_AXIS = re.compile(r"tensor '(.+?)' size mismatch at index (\d+)\. expected (\d+), actual (\d+)")
_DTYPE = re.compile(r"tensor '(.+?)' dtype mismatch\. expected (\w+), actual (\w+)")
_EQUAL = re.compile(r"^(.+?) == (\S.*?)$")
_PLACE = re.compile(r"# (?:\S*/)?([^\s/]+\.py:\d+) in ")
_AS_A_TENSOR = "pass it as a tensor"


def in_words(reason: str) -> str:
    """What changed between two calls, where, and how to stop it from compiling anew."""
    place = _PLACE.search(reason)
    return _of_guard(reason) + (f" ({place.group(1)})" if place else "")


def _of_guard(reason: str) -> str:
    text = reason.splitlines()[0] if reason else "no reason is known"
    text = re.sub(r"^\d+/\d+: ", "", text).split("  # ")[0].strip()
    if size := _AXIS.search(text):
        name, axis, one, other = size.groups()
        return (
            f"axis {axis} of {name} has size {one}, then {other}: dynamic=True, or "
            f"torch._dynamo.mark_dynamic({name}, {axis}), makes one program for all"
        )
    if dtype := _DTYPE.search(text):
        name, one, other = dtype.groups()
        return f"{name} is {one.lower()}, then {other.lower()}: give it one dtype"
    if "grad_mode" in text:
        return "it is called with gradients and without: call it under torch.no_grad() always"
    if equal := _EQUAL.match(text):
        name, value = equal.groups()
        if name.startswith("len("):
            return f"{name[4:-1]} has another length than {value}: give it one length"
        if "lr" in re.findall(r"\w+", name):
            return f"the learning rate changes: {_AS_A_TENSOR}, lr=torch.tensor(...)"
        if value.startswith(("'", '"')):
            return f"{name} is another text or key than {value}: give one, or compile each apart"
        if re.match(r"-?[\d.]", value) and "." in name:
            return (
                f"the number {name} changes and is a constant of compiled code: keep it in a "
                "tensor, as by register_buffer, or outside forward"
            )
        if re.match(r"-?[\d.]", value):
            return f"the number {name} changes and is a constant of compiled code: {_AS_A_TENSOR}"
    return text
