"""Figures and names as a reader sees them; every other file of the report writes with these.

Seconds and bytes come in as they are kept and become text here only.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.cells import cell_len, set_cell_size

from autocompile.config import DEFAULT_INDUCTOR, CompileConfig
from autocompile.errors import UsageError
from autocompile.estimate.intervals import Interval

__all__ = [
    "NONE",
    "against_default",
    "best_facts",
    "clock",
    "confidence",
    "encodable",
    "gain",
    "interval",
    "label",
    "machine",
    "measured",
    "memory_facts",
    "percent",
    "plain",
    "printable",
    "proof",
    "quantity",
    "rate",
    "ratio",
    "read_interval",
    "same_as",
    "seconds",
    "shorten",
    "size",
    "speedup",
    "target_name",
    "thousands",
    "trial_remarks",
    "unfinished",
]

NONE = "–"
"""Stands where there is no figure."""

# Control sequences of ECMA-48: CSI (also as one 8-bit character), OSC up to its terminator, and
# the two-character rest. What does not match loses its escape character below.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"
)
# One character for one, so that columns stay where they are.
_ASCII = str.maketrans("×·–→±…━─−", "x|->~.=--")


def plain(text: object) -> str:
    """One line of printable text from anything that a trial wrote.

    A message may hold what a model, a compiler or a library printed: terminal escapes, line ends,
    bidirectional overrides and undecodable bytes are removed or replaced.
    """
    whole = _ESCAPES.sub("", str(text))
    return printable(" ".join(part for part in map(str.strip, whole.splitlines()) if part))


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
    """``text``, or where ``encoding`` cannot write it, the nearest ASCII of the same length."""
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return text.translate(_ASCII).encode("ascii", "replace").decode("ascii")
    return text


def thousands(value: float) -> str:
    """A whole number in groups of three: ``1 204``."""
    return f"{round(value):,}".replace(",", " ")


def quantity(value: float | None) -> str:
    """Three figures, more where the number is whole anyway: ``1 204``, ``85.2``, ``0.213``."""
    if value is None or not math.isfinite(value):
        return NONE
    size_ = abs(value)
    if size_ >= 99.95:
        return thousands(value)
    return f"{value:.{1 if size_ >= 9.995 else 2 if size_ >= 0.9995 else 3}f}"


def rate(throughput: Mapping[str, Any] | None) -> str:
    """A throughput of the report with its interval: ``1 204 samples/s [1 180, 1 228]``."""
    if not throughput:
        return NONE
    low, high = quantity(throughput.get("low")), quantity(throughput.get("high"))
    return f"{quantity(throughput['value'])} {throughput.get('unit', '')} [{low}, {high}]"


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
    if value is None or not math.isfinite(value):
        return NONE
    if value < 999.5:
        return f"{value:.0f} B"
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 999.95:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:.1f} TB"


def read_interval(data: Mapping[str, Any] | Interval | None) -> Interval | None:
    """The estimate that a report holds under ``value``, ``low`` and ``high``; None if none."""
    if data is None or isinstance(data, Interval):
        return data
    return Interval(float(data["value"]), float(data["low"]), float(data["high"]))


def speedup(value: Mapping[str, Any] | Interval | float | None) -> str:
    """``1.41×``."""
    if isinstance(value, Mapping):
        value = read_interval(value)
    number = value.value if isinstance(value, Interval) else value
    return NONE if number is None else f"{number:.2f}×"


def interval(value: Mapping[str, Any] | Interval | None) -> str:
    """The ends alone: ``[1.39, 1.43]``."""
    known = read_interval(value)
    return NONE if known is None else f"[{known.low:.2f}, {known.high:.2f}]"


def percent(half_width: float | None) -> str:
    """A relative half width, 0.009 being ``± 0.9 %``."""
    if half_width is None or not math.isfinite(half_width):
        return ""
    return f"± {half_width * 100:.1f} %"


def measured(value: Interval | None) -> str:
    """A throughput as a table shows it: ``1 204 ± 0.9 %``."""
    return NONE if value is None else f"{quantity(value.value)} {percent(value.half_width)}".strip()


def ratio(value: Interval | None, sign: str = "×") -> str:
    """A speed-up as a table shows it: ``1.41× ±0.02``."""
    if value is None:
        return NONE
    return f"{value.value:.2f}{sign} ±{(value.high - value.low) / 2:.2f}"


def gain(value: Mapping[str, Any] | Interval | None) -> str:
    """How much more gets done, 1.414 being ``+41.4 %``."""
    known = read_interval(value)
    return NONE if known is None else f"{(known.value - 1) * 100:+.1f} %"


def label(config: Mapping[str, Any] | CompileConfig) -> str:
    """The short name of a setting, also of one that a newer version wrote."""
    if isinstance(config, CompileConfig):
        return plain(config.label())
    try:
        return plain(CompileConfig.from_dict(config).label())
    except (UsageError, TypeError):
        known = {k: v for k, v in config.items() if k in CompileConfig.__dataclass_fields__}
        extra = [f"{k}={v}" for k, v in config.items() if k not in known]
        return plain(" · ".join([CompileConfig(**known).label(), *extra]))


def target_name(target: Mapping[str, Any]) -> str:
    """``ppo.py:config (AlgorithmConfig) → DefaultPPOTorchRLModule, 2.2 M parameters``."""
    name = plain(target.get("spec", "?"))
    if target.get("kind"):
        name += f" ({plain(target['kind'])})"
    told = [plain(target["description"])] if target.get("description") else []
    if (count := target.get("parameters")) is not None:
        scale, unit = next(
            ((s, u) for s, u in ((1e9, " G"), (1e6, " M"), (1e3, " k")) if count >= s), (1, "")
        )
        told.append(f"{count / scale:.{1 if unit else 0}f}{unit} parameters")
    return f"{name} → {', '.join(told)}" if told else name


def machine(environment: Mapping[str, Any]) -> str:
    """``autocompile 0.1.0 · torch 2.13.0 · AMD EPYC, 2 cores``."""
    get = environment.get
    parts = [f"autocompile {get('autocompile')}"] if get("autocompile") else ["autocompile"]
    if get("torch"):
        parts.append(f"torch {get('torch')}")
    device = str(get("device_name") or get("device") or "")
    if get("cores") and str(get("device", "cpu")) == "cpu":
        device += f", {get('cores')} core{'s' if get('cores') != 1 else ''}"
    parts += [device] if device else []
    parts += [f"CUDA {get('cuda')}"] if get("cuda") else []
    return plain(" · ".join(parts))


def against_default(best: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The speed-up over plain ``torch.compile()``; None where that is the best setting itself."""
    ratio_: Mapping[str, Any] | None = best.get("speedup_against_default")
    return None if label(best["config"]) == DEFAULT_INDUCTOR.label() else ratio_


def unfinished(report: Mapping[str, Any]) -> str:
    """What to know before anything else of a report that is not the last word; or empty."""
    if report.get("running"):
        return "Still running: this is what has been measured so far."
    if report.get("interrupted"):
        return "Interrupted: this is what had been measured until then."
    return ""


def confidence(phase: Mapping[str, Any]) -> str:
    """Whether the decision is clear, and the command that settles it where it is not."""
    found = phase.get("confidence")
    if not found or found["decided"]:
        return ""
    return f"open: {plain(phase['reason'])}   → {plain(found['command'])}"


def proof(best: Mapping[str, Any]) -> str:
    """In how many processes it was confirmed."""
    count = best.get("confirmed_processes") or 0
    return f"confirmed in {count} fresh process{'es' * (count > 1)}" if count else "not confirmed"


def best_facts(best: Mapping[str, Any]) -> Iterator[str]:
    """What is told of the best setting beside its speed-up, a fact at a time."""
    batch = f" at batch size {best['batch_size']}" if best.get("batch_size") is not None else ""
    eager = best.get("eager_throughput")
    against = f" (eager {quantity(eager['value'])})" if eager else ""
    yield rate(best.get("throughput")) + batch + against
    if best.get("compile_s") and best["config"].get("backend") != "eager":
        warm, calls = best.get("warm_compile_s"), best.get("break_even_calls")
        compiles = f"compiles in {seconds(best['compile_s'])}"
        compiles += f" ({seconds(warm)} warm)" if warm is not None else ""
        repaid = f", repaid after {thousands(calls)} call{'s' * (calls != 1)}" if calls else ""
        yield compiles + repaid
    if refresh_s := best.get("refresh_s"):
        apart, least = best.get("calls_per_update"), best.get("calls_to_repay_refresh")
        cost = f"new weights cost {seconds(refresh_s)}"
        if apart:
            yield f"{cost}, which is counted: they change every {thousands(apart)} calls"
        elif least:
            yield f"{cost}: worth it if they stay for more than {thousands(least)} calls"
    live = best.get("weights_live")
    follow = "" if live is None else " and follow" if live else " but do not follow"
    yield "outputs match eager" + (f"{follow} weight updates" if follow else "")
    yield from memory_facts(best)
    if spread := best.get("eager_call_s"):
        ends = dict.fromkeys(map(seconds, spread))
        yield f"eager itself took {' to '.join(ends)} a call, by process"
    if best.get("slow_host"):
        yield "processes in which the machine was slower than usual are left out"


def memory_facts(best: Mapping[str, Any]) -> Iterator[str]:
    """The peak memory of the best setting, against eager's where that is another."""
    mine, eager = best.get("peak_memory_bytes"), best.get("eager_peak_memory_bytes")
    if mine:
        is_eager = best["config"].get("backend") == "eager"
        against = f" (eager {size(eager)})" if eager and not is_eager else ""
        yield f"peak memory {size(mine)}{against}"


def same_as(number: int, outcome: str) -> str:
    """What answers a trial that had no timing, or no process at all."""
    return f"same code as trial {number}" if outcome == "ok" else f"as trial {number}"


def trial_remarks(trial: Mapping[str, Any], trials: Iterable[Mapping[str, Any]]) -> list[str]:
    """What a table says behind a trial's name: duplicates, repeats, graph breaks, doubts."""
    remarks = []
    if trial.get("duplicate_of") is not None:
        return [same_as(trial["duplicate_of"], trial.get("outcome", "ok"))]
    repeats = [t for t in trials if t.get("repeats") == trial["number"]]
    if repeats:
        good = [t["speedup"]["value"] for t in repeats if t["outcome"] == "ok" and t["speedup"]]
        text = f"repeated in {len(repeats)} process{'es' * (len(repeats) > 1)}"
        ends = dict.fromkeys(f"{end(good):.2f}" for end in (min, max)) if good else ()
        text += f": {' to '.join(ends)}×" if good else ""
        failed = len(repeats) - len(good)
        remarks.append(text + (f", {failed} failed" if failed else ""))
    if breaks := trial.get("graph_breaks"):
        remarks.append(f"{breaks} graph break{'s' * (breaks > 1)}")
    return remarks + [plain(flag).replace("_", " ") for flag in trial.get("flags", ())]
