"""Figures and names as a reader sees them; every other file of the report writes with these.

Seconds and bytes come in as they are kept and become text here only.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.filesize import decimal

from autocompile.estimate.intervals import Interval
from autocompile.settings.config import CompileConfig

Estimate = Mapping[str, Any] | Interval | None
"""An interval, also as a report holds it: under ``value``, ``low`` and ``high``."""

NONE = "–"
"""Stands where there is no figure."""

# Control sequences of ECMA-48: CSI, OSC, and the two-character rest; what does not match loses its
# escape character below.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"
)
# One character for one, so that columns stay where they are. Control characters steer a terminal.
_CONTROL = dict.fromkeys({*range(32), *range(127, 160)} - {*b"\t\n"}, "?")
_ASCII = str.maketrans("×·–→±…━─−", "x|->~.=--")


def plain(text: object) -> str:
    """One line of printable text from anything that a trial wrote.

    A message may hold what a model, a compiler or a library printed: terminal escapes, line ends,
    bidirectional overrides and undecodable bytes are removed or replaced.
    """
    whole = _ESCAPES.sub("", str(text))
    return printable(
        " ".join(part for part in map(str.strip, whole.splitlines()) if part)
    )


def printable(line: str) -> str:
    """One line without control characters; what no encoding can write is replaced."""
    kinds = {"Cs": "\N{REPLACEMENT CHARACTER}", "Cc": "", "Cf": ""}
    line = line.replace("\t", " ")
    return "".join(kinds.get(unicodedata.category(char), char) for char in line)


def shorten(text: str, width: int) -> str:
    """``text`` in at most ``width`` terminal cells, with an ellipsis where it was cut."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(width - 1, 0)).rstrip() + "…"


def encodable(text: str, encoding: str) -> str:
    """``text`` without control characters, or where ``encoding`` cannot write it, the nearest ASCII
    of the same length.
    """
    text = text.translate(_CONTROL)
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return text.translate(_ASCII).encode("ascii", "replace").decode("ascii")
    return text


def thousands(value: float) -> str:
    """A whole number in groups of three: ``1 204``."""
    return f"{round(value):,}".replace(",", " ")


def many(count: int, noun: str) -> str:
    """``1 trial``, ``2 trials``, ``2 processes``."""
    plural = "es" if noun.endswith("s") else "s"
    return f"{count} {noun}{plural * (count != 1)}"


def or_dash(value: float | None) -> str:
    """A number, or a dash where there is none."""
    return "-" if value is None else str(value)


def quantity(value: float | None) -> str:
    """Three figures, more where the number is whole anyway: ``1 204``, ``85.2``, ``0.213``."""
    if value is None or not math.isfinite(value):
        return NONE
    size_ = abs(value)
    if size_ >= 99.95:
        return thousands(value)
    return f"{value:.{1 if size_ >= 9.995 else 2 if size_ >= 0.9995 else 3}f}"


def clock(value: float) -> str:
    """Minutes and seconds on a clock: ``1:12``, ``1:02:03``."""
    minutes, rest = divmod(max(round(value), 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def seconds(value: float | None, gap: str = " ") -> str:
    """A duration: ``0.3 ms``, ``12 ms``, ``2.7 s``, ``1:12``."""
    if value is None or not math.isfinite(value):
        return NONE
    if value <= 0:  # a first call minus a steady one can come out below nothing
        return f"0{gap}s"
    if value < 0.0000995:
        return f"{value * 1e6:.0f}{gap}µs"
    if value < 0.0995:
        return f"{value * 1e3:.{1 if value < 0.00995 else 0}f}{gap}ms"
    return f"{value:.1f}{gap}s" if value < 59.95 else clock(value)


def size(value: float | None) -> str:
    """Bytes in decimal units: ``512 B``, ``20.0 MB``, ``1.3 GB``."""
    return (
        NONE
        if value is None
        else decimal(round(value), separator=" ").replace("bytes", "B")
    )


def read_interval(data: Estimate) -> Interval | None:
    """The estimate that a report holds; None if none."""
    if data is None or isinstance(data, Interval):
        return data
    return Interval(float(data["value"]), float(data["low"]), float(data["high"]))


def speedup(value: Estimate | float) -> str:
    """``1.41×``."""
    known = value if isinstance(value, float) else read_interval(value)
    number = known.value if isinstance(known, Interval) else known
    return NONE if number is None else f"{number:.2f}×"


def interval(value: Estimate) -> str:
    """The ends alone: ``[1.39, 1.43]``."""
    known = read_interval(value)
    return NONE if known is None else f"[{known.low:.2f}, {known.high:.2f}]"


def estimate(value: Estimate) -> str:
    """A speed-up with its interval: ``1.41× [1.39, 1.43]``."""
    return f"{speedup(value)} {interval(value)}"


def percent(half_width: float) -> str:
    """A relative half width, 0.009 being ``± 0.9 %``."""
    return f"± {half_width * 100:.1f} %" if math.isfinite(half_width) else ""


def measured(value: Estimate) -> str:
    """A throughput as a table shows it: ``1 204 ± 0.9 %``."""
    known = read_interval(value)
    return (
        f"{quantity(known.value)} {percent(known.half_width)}".strip()
        if known
        else NONE
    )


def ratio(value: Estimate) -> str:
    """A speed-up as a table shows it: ``1.41× ±0.02``."""
    known = read_interval(value)
    return f"{speedup(known)} ±{(known.high - known.low) / 2:.2f}" if known else NONE


def label(config: CompileConfig) -> str:
    """The short name of a setting."""
    return plain(config.label())


def target_name(target: Mapping[str, Any]) -> str:
    """``model.py (functions) → ResNet, 2.2 M parameters``."""
    name = str(target.get("spec", "?"))
    if target.get("kind"):
        name += f" ({target['kind']})"
    told = [str(target["description"])] if target.get("description") else []
    if (count := target.get("parameters")) is not None:
        units = ((1e9, " G"), (1e6, " M"), (1e3, " k"))
        short = (
            f"{count / scale:.1f}{unit}" for scale, unit in units if count >= scale
        )
        told.append(f"{next(short, count)} parameters")
    return plain(f"{name} → {', '.join(told)}" if told else name)


def machine(environment: Mapping[str, Any]) -> str:
    """``autocompile 0.1.0 · torch 2.13.0 · AMD EPYC, 2 cores``."""
    get = environment.get
    device = str(get("device_name") or get("device") or "")
    if get("cores") and str(get("device", "cpu")) == "cpu":
        device += f", {many(environment['cores'], 'core')}"
    busy, busy_gpu = get("busy_cores"), get("busy_gpu")
    parts = (
        f"autocompile {get('autocompile') or ''}".strip(),
        f"torch {get('torch')}" if get("torch") else "",
        device,
        f"CUDA {get('cuda')}" if get("cuda") else "",
        f"driver {get('driver')}" if get("driver") else "",
        f"{get('power_limit_w'):.0f} W" if get("power_limit_w") else "",
        f"other programs use {busy:.1f} of {many(get('cores', '?'), 'core')}"
        if busy
        else "",
        f"other programs use {busy_gpu:.0%} of a GPU" if busy_gpu else "",
    )
    return plain(" · ".join(filter(None, parts)))
