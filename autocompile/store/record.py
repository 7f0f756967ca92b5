"""Record of one trial, and the folder of a run.

``result.json`` holds raw block times; statistics are computed on reading.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from autocompile.errors import AutocompileError, RunError, TargetError
from autocompile.estimate.intervals import Interval, median, speedup
from autocompile.settings.config import CompileConfig
from autocompile.settings.phases import phase_of
from autocompile.store.files import make_folder, write_json
from autocompile.store.reading import Part, demand_schema, known, of_fields, plain

AT_WORK = "at_work"
"""File in a race's folder: the number of the trial whose setting is running, or -1."""
EXPORTED = "exported"
"""Role of records of exported code, which do not count as measurements of the setting."""
_OF_A_RUN = ("request", "environment", "target", "phases")
SCHEMA = 1
"""Version of every JSON file of a run. 1: the first."""
T = TypeVar("T", bound="TaskResult")


class Outcome(StrEnum):
    """How a trial ended."""

    OK = "ok"
    WRONG_OUTPUT = "wrong_output"
    STALE_WEIGHTS = "stale_weights"
    NOT_COMPILED = "not_compiled"
    RECOMPILE_LIMIT = "recompile_limit"
    GRAPH_BREAK = "graph_break"
    UNSUPPORTED = "unsupported"
    COMPILE_ERROR = "compile_error"
    RUNTIME_ERROR = "runtime_error"
    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    IMPORT_ERROR = "import_error"
    INTERRUPTED = "interrupted"
    INFRASTRUCTURE = "infrastructure"


class Step(StrEnum):
    """The steps of a trial."""

    IMPORT = "import"
    BUILD = "build"
    EAGER = "eager"
    COMPILE = "compile"
    VERIFY = "verify"
    MEASURE = "measure"
    EXIT = "exit"


@dataclass(frozen=True, kw_only=True)
class GraphBreak(Part):
    """A place where Dynamo broke the graph; what is not known of it is empty."""

    place: str = ""  # such as model.py:12
    code: str = ""  # the line there
    reason: str = ""  # in torch's words


class Checks(StrEnum):
    """Which checks a trial is asked for, and which a setting has passed in it."""

    FIRST = "first"  # what a call shows
    ALL = "all"  # also what takes a compile or many calls


@dataclass(kw_only=True)
class TaskResult:
    """What the process of every task may send."""

    outcome: Outcome = Outcome.INTERRUPTED  # until it has ended
    step: Step = Step.IMPORT  # the last that was reached
    message: str = ""
    # the last line of the user's own code that an exception passed
    where: str | None = None
    # what, details and hint of an error of ours
    explained: Mapping[str, Any] | None = None
    # Of the graph that it compiled, or of the error that ended it: the first few places.
    breaks: list[GraphBreak] = field(default_factory=list)
    # What else was found, by name: it is only shown.
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def error(self) -> TargetError | None:
        """The error that the process has explained."""
        if (
            not self.explained
            or not {"what", "details", "hint"} <= self.explained.keys()
        ):
            return None
        what, details, hint = (
            self.explained[name] for name in ("what", "details", "hint")
        )
        if not isinstance(details, list):
            return None
        return TargetError(
            str(what), *map(str, details), hint=None if hint is None else str(hint)
        )

    @classmethod
    def read(cls: type[T], payload: Mapping[str, Any]) -> T:
        """What a child has sent; a RunError if it makes no sense."""
        try:
            result: T = of_fields(cls, known(cls, payload))
        except (AutocompileError, TypeError, ValueError) as error:
            raise RunError(f"the result of a process makes no sense: {error}") from None
        return result


@dataclass(frozen=True)
class CallKind:
    """The calls of a workload that have one shape."""

    shape: str  # such as 8×128
    calls: int
    eager_s: float  # of one call, alone between two synchronizations
    call_s: float  # the same of the setting


@dataclass
class Record(TaskResult):
    """All data of one trial, or of one setting of a race: ``result.json``.

    The trial's process sends what it finds; the parent adds what it has seen of that process.
    """

    number: int  # counts the trials of a run, all phases together
    phase: str
    config: CompileConfig
    batch_size: int | None
    device: str = "cpu"  # the kind of device that it was measured on
    # "confirm" for one side of a race, "exported" for exported code
    role: str = "search"
    ranks: int = 1  # processes that have made each call together
    # of eager mode: seconds of a call of one rank by itself, without the others
    alone_s: float | None = None
    repeats: int | None = None  # the trial that is measured again; None for "search"
    race: int | None = None  # of "confirm" its set, counted by phase and batch size
    raced_in: int | None = None  # the job whose process it shared with others
    duplicate_of: int | None = None  # the trial whose result was reused
    measurement: Measurement | None = None
    # extra seconds of the first three calls; in races: warm cache
    compile_s: float | None = None
    # Most other trials that ran beside it, and threads that Inductor had for its compile: with
    # fewer than a program has, or on cores that others use, a compile takes longer.
    beside: int | None = None
    compile_threads: int | None = None
    # of these by time.monotonic; not kept
    compile_window: tuple[float, float] | None = None
    # extra seconds of a call after new weights, if constants
    refresh_s: float | None = None
    # calls between two changes of the weights, if known
    calls_per_update: int | None = None
    # passes that a program lives for, if compile time is to count
    horizon: float | None = None
    # of a workload: calls of one shape, most frequent first
    kinds: list[CallKind] | None = None
    peak_memory_bytes: int | None = None  # of the compiled side
    eager_peak_memory_bytes: int | None = None
    held_bytes: int | None = None  # of an accelerator's memory, by the whole process
    graphs: int | None = None
    graph_breaks: int | None = None
    recompiles: int | None = None
    skipped_frames: int | None = None  # functions that Dynamo gave up as a whole
    cudagraph_skips: int | None = None  # graphs that Inductor replays by no CUDA graph
    answered: bool = False  # not tried, since other trials told how it ends
    # Which checks it has passed. Older versions made all of them in the first trial.
    checks: Checks = Checks.ALL
    # whether new weights change what the compiled side computes
    weights_live: bool | None = None
    reference_s: float | None = None  # of the reference workload
    # of its process without pauses; an equal part of one that is shared
    wall_s: float = 0.0
    step_s: Mapping[str, float] = field(default_factory=dict)  # of the whole process
    # Step, begin and end of its work, Unix time.
    spans: tuple[tuple[str, float, float], ...] = ()
    notes: list[str] = field(default_factory=list)  # sentences for the user

    @property
    def ok(self) -> bool:
        return self.outcome is Outcome.OK and self.measurement is not None

    @property
    def process(self) -> int:
        """The number of the job that it ran in: several sides of a race share one."""
        return self.number if self.raced_in is None else self.raced_in

    @property
    def samples(self) -> int:
        """The number of samples in a measured call, of all ranks; 1 where there is no batch."""
        return (self.batch_size or 1) * self.ranks

    @property
    def began(self) -> float | None:
        """When its process began, in Unix time; None if it had none, and in older runs."""
        return self.spans[0][1] if self.spans else None

    @property
    def is_known_to_pay(self) -> bool:
        """False if a change of the weights costs time and its frequency is unknown.

        A plain model's forward pass is assumed to keep its weights; an agent's weights change.
        """
        phase = phase_of(self.phase)
        changes = phase.method
        return not (self.refresh_s and changes and not self.calls_per_update)

    def to_dict(self) -> dict[str, Any]:
        return {
            **{f.name: plain(getattr(self, f.name)) for f in fields(self)},
            "schema": SCHEMA,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Record:
        """Read what :meth:`to_dict` wrote, and pass over the keys of other versions."""
        values = known(cls, data)
        if not isinstance(config := data["config"], CompileConfig):
            values["config"] = CompileConfig.from_dict(config, data["phase"])
        detail = dict(data.get("detail", {}))
        # Older versions kept some fields there.
        moved = {f.name: detail.pop(f.name) for f in fields(cls) if f.name in detail}
        record: Record = of_fields(cls, {**moved, **values, "detail": detail})
        return record


class RunFolder:
    """The paths of one run: ``run.json``, ``study.db``, ``trials/0007/``, ``report.*``."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.run_json = self.path / "run.json"
        self.study_db = self.path / "study.db"
        self.trials = self.path / "trials"
        self.cache = self.path / "cache"
        self.in_algorithm = self.path / "in_algorithm.json"
        self._made: list[Path] = []

    def reserve(self) -> None:
        """Create the folder; a FileExistsError if it is there already, as another command's."""
        self._made += [p for p in (self.path, *self.path.parents) if not p.exists()]
        make_folder(self.path, True)

    def create(self) -> None:
        """Create the folder, if it is not there, and that of its trials."""
        self._made += [p for p in (self.path, *self.path.parents) if not p.exists()]
        make_folder(self.path)
        make_folder(self.trials)

    def holds_something_else(self) -> bool:
        """Whether the folder has files that an aborted start of a run does not explain."""
        entries = {p.name for p in self.path.glob("*")}
        # A user's folder may have equal names: these hold nothing.
        left = {"lock", "trials"}
        if (self.path / "probe" / "request.json").is_file():
            left |= {"cache", *(p.name for p in self.path.glob("probe*/"))}
            # A new run makes it anew.
            left |= {p.name for p in self.path.glob("study.db*")}
        return not entries <= left or (
            "trials" in entries and any(self.trials.iterdir())
        )

    def remove(self) -> None:
        """Remove the files and folders of a run that was aborted at its start."""
        for part in (*self.path.glob("probe*/"), self.cache):
            shutil.rmtree(part, ignore_errors=True)
        with contextlib.suppress(OSError):
            for file in (self.path / "lock", self.study_db):
                file.unlink(missing_ok=True)
        for folder in (self.trials, *self._made):
            with contextlib.suppress(OSError):  # not empty: keep other files
                folder.rmdir()

    def trial(self, number: int) -> Path:
        return self.trials / f"{number:04d}"

    def save(self, record: Record) -> None:
        make_folder(self.trial(record.number))
        write_json(self.trial(record.number) / "result.json", record.to_dict())

    def numbers(self) -> list[int]:
        """Of all started trials, in order."""
        return sorted(int(p.name) for p in self.trials.glob("*") if p.name.isdigit())

    def read(self) -> tuple[list[Record], list[str]]:
        """Finished trials by their numbers, and sentences about those that are left out."""
        records: list[Record] = []
        left_out = defaultdict[str, list[int]](list)
        for number in self.numbers():
            try:
                data = json.loads(
                    (self.trial(number) / "result.json").read_text("utf-8")
                )
                demand_schema("its result.json", data, SCHEMA)
                records.append(Record.from_dict(data))
            except FileNotFoundError:
                continue
            except AutocompileError as error:
                left_out[error.what].append(number)
            except (
                OSError,
                KeyError,
                TypeError,
                ValueError,
                AttributeError,
                RecursionError,
            ) as error:
                left_out[f"its result.json is damaged: {error}"].append(number)
        return records, [
            f"trials left out ({', '.join(map(str, numbers))}): {why}"
            for why, numbers in left_out.items()
        ]

    def read_run(self) -> dict[str, Any]:
        """The content of ``run.json``."""
        try:
            data: dict[str, Any] = json.loads(self.run_json.read_text("utf-8"))
        except FileNotFoundError:
            what = f"{self.path} is not a run folder: it has no run.json"
            raise RunError(what, hint="autocompile show last") from None
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(f"cannot read {self.run_json}: {error}") from error
        demand_schema(self.run_json, data, SCHEMA)
        if "plan" in data:
            data["request"] = _request_of(data.pop("plan"), data.pop("options", {}))
        if lost := [name for name in _OF_A_RUN if not data.get(name)]:
            raise RunError(f"{self.run_json} was edited: it has no {lost[0]}")
        return data


def _request_of(plan: Any, options: Any) -> Any:
    """The request of a run that was recorded as a plan and the options of its last session."""
    if not isinstance(plan, dict) or not isinstance(options, dict):
        return None
    pythons = [f"{name}={path}" for name, path in plan.get("pythons", ())]
    gone = ("storage", "accelerators")
    kept = {name: value for name, value in options.items() if name not in gone}
    return {**kept, **plan, "pythons": pythons}


@dataclass(frozen=True)
class Measurement:
    """Raw block times of one process, one entry per round."""

    eager_s: tuple[float, ...]  # per call of the eager block
    compiled_s: tuple[float, ...]  # per call of the compiled block in the same round
    calls: tuple[int, int] = (1, 1)  # of an eager and of a compiled block
    # eager_slowed if eager is slower next to the other side than alone; between_synchronizations
    # if a call leaves work to other streams of a GPU, so that each block began with an empty queue.
    flags: tuple[str, ...] = ()
    # Untimed calls before a block: slowed, or to fill a queue.
    leads: tuple[int, int] = (0, 0)
    # of a compiled pass alone, about, where the times are not
    pass_s: float | None = None

    @functools.cached_property
    def speedup(self) -> Interval:
        """Eager time over compiled time, with a 95 % interval from the rounds."""
        return speedup(self.eager_s, self.compiled_s)

    @property
    def eager_call_s(self) -> float:
        return median(self.eager_s)

    @property
    def compiled_call_s(self) -> float:
        return median(self.compiled_s)

    @property
    def compiled_pass_s(self) -> float:
        """Of all that a side calls at once, to tell what the first such call took more."""
        return self.compiled_call_s if self.pass_s is None else self.pass_s

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Measurement:
        """Read a measurement, and pass over the keys of other versions."""
        measurement: Measurement = of_fields(cls, known(cls, data))
        _ = measurement.speedup  # raises if the times are invalid
        return measurement
