"""What a trial's process is asked to do: the content of ``request.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any

from autocompile.errors import RunError, UsageError
from autocompile.settings.config import CompileConfig
from autocompile.settings.tuned import Tuned
from autocompile.settings.tuned_set import TunedSet
from autocompile.store.reading import demand_schema, of_fields, plain

__all__ = [
    "AlgorithmRequest",
    "ExportedCode",
    "Header",
    "Kind",
    "ProbeRequest",
    "RaceRequest",
    "Request",
    "SaveRequest",
    "Side",
    "TimingLimits",
    "TrialRequest",
    "parse_request",
    "read_request",
]

SCHEMA = 1
"""Version of a request. 1: the first; it is not in the requests of older versions."""


class Kind(str, Enum):
    """The kinds of requests, as the file names them."""

    TRIAL = "trial"
    RACE = "race"
    EXPORTED = "exported"
    PROBE = "probe"
    SAVE = "save"
    IN_ALGORITHM = "in_algorithm"


@dataclass(frozen=True)
class Header:
    """What all requests of a run have in common."""

    target: str = ""
    device: str | None = None
    seed: int = 0
    tolerance: float | None = None


@dataclass(frozen=True)
class TimingLimits:
    """When to stop timing one setting."""

    rounds: int = 8  # at least, unless a call takes very long
    max_s: float = 0.5
    front_s: float = 1.0  # max_s of a setting near the best
    half_width: float = 0.01  # of the speed-up's interval, relative; stop when it is this narrow
    beat: float = 0.0  # the best known speed-up; stop when a setting is clearly below it
    block_s: float = 0.02  # about; a longer call is a block of its own


@dataclass(frozen=True)
class ExportedCode:
    """Lines of Python, and the settings that they read from ``tuned.json``."""

    code: str
    settings: Tuned


@dataclass(frozen=True)
class Side:
    """One setting of a race."""

    number: int  # of the trial that found it
    config: CompileConfig
    cache: str  # folder of its compiler cache
    is_warm: bool  # whether its code is in the cache
    exported: ExportedCode | None = None  # makes this side in place of the setting


@dataclass(frozen=True, kw_only=True)
class Request:
    """What every request holds."""

    header: Header
    number: int = -1  # of the job; -1 for the probe

    @property
    def kind(self) -> Kind:
        return next(kind for kind, made in _CLASSES.items() if made is type(self))

    def to_dict(self) -> dict[str, Any]:
        own = {f.name: plain(getattr(self, f.name)) for f in fields(self)}
        return {"schema": SCHEMA, "kind": self.kind.value, **own.pop("header"), **own}


@dataclass(frozen=True, kw_only=True)
class TrialRequest(Request):
    """Verify one setting and time it against eager mode."""

    phase: str
    config: CompileConfig
    batch_size: int | None = None
    limits: TimingLimits = TimingLimits()
    calls_per_update: int | None = None
    known_codes: Mapping[str, int] = field(default_factory=dict)  # code to trial that measured it
    compile_threads: int = 1  # of Inductor


@dataclass(frozen=True, kw_only=True)
class RaceRequest(Request):
    """Verify settings and time them side by side."""

    phase: str
    sides: tuple[Side, ...]
    batch_size: int | None = None
    block_s: float
    rounds: int
    max_s: float  # of all rounds
    takes_turns: bool = False  # with other processes, round by round
    compile_threads: int = 1  # of Inductor
    calls_per_update: int | None = None

    @property
    def kind(self) -> Kind:
        return Kind.EXPORTED if any(side.exported for side in self.sides) else Kind.RACE


@dataclass(frozen=True, kw_only=True)
class ProbeRequest(Request):
    """Look at machine, torch and target."""

    phases: tuple[str, ...] | None = None  # run once in eager mode; None: the target's usual ones
    batch_size: int
    backends: tuple[str, ...] | None = None  # to look for; None: the default ones
    toolchain: str | None = None  # folder that compiler caches start with; None: no compile


@dataclass(frozen=True, kw_only=True)
class SaveRequest(Request):
    """Compile settings as a user's process does, and keep what torch made in a file."""

    settings: Tuned
    file: str


@dataclass(frozen=True, kw_only=True)
class AlgorithmRequest(Request):
    """Run the target's RLlib algorithm with and without settings, for so many seconds."""

    tuned: TunedSet
    budget_s: float


_CLASSES: Mapping[Kind, type[Request]] = {
    Kind.TRIAL: TrialRequest,
    Kind.RACE: RaceRequest,
    Kind.EXPORTED: RaceRequest,
    Kind.PROBE: ProbeRequest,
    Kind.SAVE: SaveRequest,
    Kind.IN_ALGORITHM: AlgorithmRequest,
}


def read_request(folder: Path) -> Request:
    """What the folder of a trial asks for."""
    path = folder / "request.json"
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {path}: {error}") from error
    return parse_request(data, path)


def parse_request(data: Any, where: object) -> Request:
    """The request that JSON holds, of any version up to this one.

    Raises:
        RunError: of a newer schema, of an unknown kind, with an unknown key, or damaged.
    """
    demand_schema(where, {"schema": SCHEMA, **data} if isinstance(data, dict) else data, SCHEMA)
    own = {name: value for name, value in data.items() if name not in ("schema", "kind")}
    own["header"] = {f.name: own.pop(f.name) for f in fields(Header) if f.name in own}
    try:
        request: Request = of_fields(_CLASSES[Kind(data.get("kind"))], own)
    except UsageError as error:
        raise RunError(f"{where}: {error.what}", *error.details, hint=error.hint) from None
    except (TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{where} is damaged or of another version: {error}") from None
    return request
