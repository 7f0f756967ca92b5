"""Why Dynamo compiled again, in plain words, and what a user can change.

The texts are those of the guards of torch 2.13 that fail; one that is not known here is given as it
is.
"""

from __future__ import annotations

import re

_AXIS = re.compile(
    r"tensor '(.+?)' size mismatch at index (\d+)\. expected (\d+), actual (\d+)"
)
_DTYPE = re.compile(r"tensor '(.+?)' dtype mismatch\. expected (\w+), actual (\w+)")
_RANK = re.compile(r"tensor '(.+?)' rank mismatch\. expected (\d+), actual (\d+)")
_STRIDE = re.compile(r"tensor '(.+?)' stride mismatch")
_GRADIENTS = re.compile(r"tensor '(.+?)' requires_grad mismatch")
_CLASS = re.compile(r"^___check_type_id\((.+?), .*type=<class '(.+?)'>")
_KEYS = re.compile(r"^list\(dict\.keys\((.+?)\)\)")
_NONE = re.compile(r"^(\S+) is (?:not )?None$")
_EQUAL = re.compile(r"^(.+?) == (\S.*?)$")
_PLACE = re.compile(r"# (?:\S*/)?([^\s/]+\.py:\d+) in ")
_AS_A_TENSOR = "pass it as a tensor"
_EACH = (
    "each way is a program of its own, so call it one way, or compile a copy for each"
)


def reason_in_words(reason: str) -> str:
    """What changed between two calls, where, and how to stop it from compiling anew."""
    place = _PLACE.search(reason)
    return _of_guard(reason) + (f" ({place.group(1)})" if place else "")


def _of_guard(reason: str) -> str:
    text = reason.splitlines()[0] if reason else "no reason is known"
    text = re.sub(r"^\d+/\d+: ", "", text).split("  # ")[0].strip()
    if size := _AXIS.search(text):
        name, axis, one, other = size.groups()
        if one in "01":
            return f"axis {axis} of {name} has size {one}, then {other}: {one} is a constant always"
        return (
            f"axis {axis} of {name} has size {one}, then {other}: dynamic=True, or "
            f"torch._dynamo.mark_dynamic({name}, {axis}), makes one program for all"
        )
    if dtype := _DTYPE.search(text):
        name, one, other = dtype.groups()
        return f"{name} is {one.lower()}, then {other.lower()}: give it one dtype"
    if rank := _RANK.search(text):
        name, one, other = rank.groups()
        return f"{name} has {one} dimensions, then {other}: give it one number of them"
    if stride := _STRIDE.search(text):
        return f"{stride[1]} is laid out otherwise in memory: pass {stride[1]}.contiguous()"
    if gradients := _GRADIENTS.search(text):
        return f"{gradients[1]} requires gradients in some calls only: {_EACH}"
    if kind := _CLASS.search(text):
        return f"{kind[1]} is of another class than {kind[2].split('.')[-1]}: {_EACH}"
    if "autocast" in text:
        return f"it is called under autocast and without: {_EACH}"
    if absent := _NONE.search(text):
        return f"{absent[1]} is None in some calls only: {_EACH}"
    if "grad_mode" in text:
        return "it is called with gradients and without: call it under torch.no_grad() always"
    if equal := _EQUAL.match(text):
        name, value = equal.groups()
        if name.startswith("len("):
            return f"{name[4:-1]} has another length than {value}: give it one length, or stack it"
        if keys := _KEYS.match(name):
            return f"{keys[1]} has other keys ({value} in some calls only): give it the same ones"
        if value in ("True", "False"):
            return f"{name} is true in some calls and false in others: {_EACH}"
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
            return (
                f"the number {name} changes and is a constant of compiled code: {_AS_A_TENSOR}, or "
                "compile with dynamic=True"
            )
    return text
