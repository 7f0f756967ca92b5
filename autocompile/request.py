"""What is asked for: each option of autocompile is declared here, once, as a field.

The command line, the signature of :func:`autocompile.tune`, the tool of the MCP server,
``run.json``, ``tuned.json``, ``suite.json`` and the commands that reports print are made
of these fields. A new option is one field, and whatever it has an effect on.
"""

from __future__ import annotations

import dataclasses
import difflib
import shlex
from collections.abc import Collection, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from autocompile.errors import AutocompileError, RunError, UsageError
from autocompile.estimate.limits import Limits
from autocompile.interpreters.named import found_interpreters, paths_of
from autocompile.settings.option import (
    CALLED,
    CHOSEN,
    COMMON,
    COUNT,
    FILE,
    FLAG,
    FOLDER,
    FRACTION,
    LIST,
    MACHINES,
    NAME,
    NOTHING,
    OUTPUT,
    PATHS,
    PROCESSES,
    SEED,
    SIZE,
    TIME,
    TRIED,
    Declared,
    Kept,
    choice,
    declared,
    demand_accepted,
    demand_known,
    kept_names,
    option,
    typed,
    words,
)
from autocompile.settings.phases import OF_RANKS, TRAIN_STEP
from autocompile.settings.searchspace import SearchSpace
from autocompile.store.reading import known as fields_of
from autocompile.store.reading import of_fields, plain
from autocompile.store.recorded_calls import RecordedCalls, read_calls
from autocompile.store.targets import is_same_target

Effort = Literal["quick", "normal", "full"]
EFFORTS: Mapping[str, float | None] = {"quick": 90.0, "normal": 300.0, "full": None}
"""Seconds of a run; None: to the end of the list of settings."""
COMPARED: Mapping[str, int] = {"quick": 2, "normal": 4}
"""Compiled settings of a phase that an effort tries at the least, longer than its seconds too."""
Objective = Literal["throughput", "latency"]
Isolation = Literal["auto", "fork", "spawn"]
Strategy = Literal["ddp", "fsdp2", "own"]
SAMPLERS = ("portfolio", "tpe", "random")
_SAMPLER = dataclasses.replace(
    choice("NAME", *SAMPLERS),
    accepts=lambda value: not isinstance(value, str) or value in SAMPLERS,
)


@dataclass(frozen=True)
class Request:
    """One request to tune: a target, and the value of every option.

    A run keeps its request in ``run.json``. ``asked`` names the options that somebody
    has given a value; None: those that differ from their default.
    """

    target: str  # as a spec: PATH, PATH:NAME, package.module:NAME or LIBRARY:MODEL
    _: KW_ONLY
    phases: tuple[str, ...] | None = option(
        None,
        LIST,
        "what to time; two phases of the target if left out",
        COMMON,
        "--phase",
        Kept.RUN,
    )
    effort: Effort = option(
        "normal",
        choice("LEVEL", *get_args(Effort)),
        "quick: 90 s, normal (if left out): 5 min, longer if compiling is slow; full: all settings",
        COMMON,
        "--effort",
        Kept.RUN | Kept.SUITE,
    )
    budget_s: float | None = option(
        None,
        TIME,
        "end the whole run after this time, as 10m; set by the effort if left out",
        COMMON,
        "--budget",
        Kept.LAST,
    )
    device: str | None = option(
        None,
        NAME,
        "cpu, cuda or cuda:1; a GPU where there is one",
        COMMON,
        "--device",
        Kept.RUN | Kept.SUITE,
    )
    resume: bool = option(
        False, FLAG, "go on with the last run of the target", COMMON, "--resume"
    )
    objective: Objective = option(
        "throughput",
        choice("NAME", *get_args(Objective)),
        "throughput (if left out) or latency",
        CHOSEN,
        "--objective",
        Kept.RUN | Kept.VERIFY,
    )
    limits: Limits = option(
        Limits, NOTHING, "what a setting must keep", CHOSEN, kept=Kept.RUN | Kept.VERIFY
    )
    space: SearchSpace = option(
        SearchSpace,
        FILE,
        "read such lists from TOML; options go before it",
        TRIED,
        "--space",
        Kept.RUN | Kept.SUITE,
    )
    trials: int | None = option(
        None,
        COUNT,
        "start at most this many trials; with --resume this many more",
        TRIED,
        "--trials",
        Kept.LAST,
    )
    # In Python also any sampler of Optuna's kind.
    sampler: Any = option(
        "portfolio",
        _SAMPLER,
        "portfolio (if left out), or Optuna's tpe or random",
        TRIED,
        "--sampler",
        Kept.RESUME,
    )
    # Once they are found, each as NAME=PATH.
    pythons: tuple[str, ...] = option(
        (),
        PATHS,
        "try this interpreter too, as PATH or NAME=PATH; repeatable",
        TRIED,
        "--python",
        Kept.RUN,
    )
    # In Python also a path.
    calls: RecordedCalls | str | Path | None = option(
        None,
        FILE,
        "a file of autocompile.record: what the model is called with",
        CALLED,
        "--calls",
        Kept.RUN | Kept.VERIFY,
    )
    tolerance: float | None = option(
        None,
        FRACTION,
        "how far outputs may differ, as 0.01; by dtype if left out",
        CALLED,
        "--tolerance",
        Kept.RUN | Kept.VERIFY | Kept.SUITE,
    )
    horizon: int | None = option(
        None,
        COUNT,
        "calls that a program makes, over which compile time counts; many if left out",
        CALLED,
        "--horizon",
        Kept.RUN | Kept.VERIFY,
    )
    calls_per_update: int | None = option(
        None,
        COUNT,
        "how often weights are used before they change; by the target if left out",
        CALLED,
        "--calls-per-update",
        Kept.RUN | Kept.VERIFY,
    )
    seed: int = option(
        0,
        SEED,
        "of weights, inputs and orders; 0 if left out",
        CALLED,
        "--seed",
        Kept.RUN | Kept.VERIFY | Kept.SUITE,
    )
    jobs: int | None = option(
        None,
        COUNT,
        "compile side by side; one a core if left out",
        PROCESSES,
        "--jobs",
        Kept.RESUME | Kept.SUITE | Kept.STATION,
    )
    timeout_s: float = option(
        300.0,
        TIME,
        "end a trial that stays longer in one step; 300s if left out",
        PROCESSES,
        "--timeout",
        Kept.RESUME | Kept.SUITE,
    )
    memory_limit_bytes: int | None = option(
        None,
        SIZE,
        "end a trial that needs more; its share of 80 % of what is free if left out",
        PROCESSES,
        "--memory-limit",
        Kept.RESUME | Kept.SUITE | Kept.STATION,
    )
    wait: bool = option(
        False,
        FLAG,
        "wait until no other autocompile is at work on this machine",
        PROCESSES,
        "--wait",
    )
    isolation: Isolation = option(
        "auto",
        choice("KIND", *get_args(Isolation)),
        "how trials start: fork (from a warm process), spawn, or auto (if left out)",
        PROCESSES,
        "--isolation",
        Kept.RESUME | Kept.STATION,
    )
    ranks: int = option(
        1,
        COUNT,
        "tune a training step on this many processes that average gradients, one a GPU",
        CALLED,
        "--ranks",
        Kept.RUN | Kept.VERIFY,
    )
    strategy: Strategy = option(
        "ddp",
        choice("NAME", *get_args(Strategy)),
        "how ranks train together: ddp (if left out), fsdp2, or own: get_model() wraps the model",
        CALLED,
        "--strategy",
        Kept.RUN | Kept.VERIFY,
    )
    ray: str | None = option(
        None,
        NAME,
        "use the stations of a Ray cluster, as auto or HOST:PORT",
        MACHINES,
        "--ray",
        Kept.RESUME | Kept.SUITE,
        is_typed_only=True,
    )
    accelerators: tuple[str, ...] | None = option(
        None,
        LIST,
        "a run for each of these types, as H100,T4,cpu; all that the cluster has if left out",
        MACHINES,
        "--accelerators",
        is_typed_only=True,
    )
    run_dir: str | Path | None = option(
        None,
        FOLDER,
        "keep the run here; a new folder in ./runs if left out",
        OUTPUT,
        "--run-dir",
    )
    # Batch size and config of what is tried of each phase, beside eager mode and plain
    # torch.compile(); None for all that the space gives.
    only: Mapping[str, list[tuple[int | None, dict[str, Any]]]] | None = option(
        None, NOTHING, "", "", kept=Kept.RUN
    )
    asked: frozenset[str] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.phases, str):
            object.__setattr__(self, "phases", words([self.phases]))
        if self.asked is None:
            given = frozenset(self._values(lambda said: True))
            object.__setattr__(self, "asked", given)
        demand_accepted(self)
        if self.phases is not None and len(set(self.phases)) != len(self.phases):
            raise UsageError(f"a phase is named twice: {', '.join(self.phases)}")
        if self.ranks > 1 and self.ray:
            raise UsageError(
                "--ranks and --ray do not go together: a station of a cluster tries one process",
                hint="autocompile tune --ranks on the machine itself",
            )
        other = [p for p in self.phases or () if p not in OF_RANKS]
        if self.ranks > 1 and other:
            raise UsageError(
                f"ranks average gradients, and {other[0]} has none",
                hint=f"--phase {TRAIN_STEP}, or without --ranks",
            )

    # Making one -------------------------------------------------------------------------

    @classmethod
    def of(cls, target: str, given: Mapping[str, Any]) -> Request:
        """A request for a target, with options by name; None stands for the default.

        Values are as users give them: a path for ``calls``, mappings for ``space`` and
        ``limits``, any list for a tuple. What they name is read and found.

        Raises:
            UsageError: there is no such option, or no such value.
        """
        demand_options(cls, given)
        values = {name: value for name, value in given.items() if value is not None}
        for name, value in values.items():
            if isinstance(value, list):
                values[name] = tuple(value)
        for name, kind in (("space", SearchSpace), ("limits", Limits)):
            if isinstance(values.get(name), Mapping):
                known = [f.name for f in fields(kind)]
                for key in values[name]:
                    demand_known(f"{name}: key", key, known)
                values[name] = kind(**values[name])
        if isinstance(values.get("calls"), (str, Path)):
            values["calls"] = read_calls(Path(values["calls"]))
        if "pythons" in values:
            values["pythons"] = found_interpreters(values["pythons"])
        empty = ((), SearchSpace(), Limits())
        asked = frozenset(name for name, value in values.items() if value not in empty)
        return cls(target, asked=asked, **values)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Request:
        """Read what :meth:`to_dict` gave; a RunError if this version does not know all of it."""
        try:
            request: Request = of_fields(cls, data)
        except (TypeError, ValueError) as error:
            raise RunError(
                f"the run asks for something else: {error}",
                hint="go on with it in the autocompile that it was made with",
            ) from None
        return request

    def to_dict(self) -> dict[str, Any]:
        """What ``run.json`` keeps, as JSON."""
        kept = {
            name: plain(getattr(self, name))
            for name in kept_names(Request, Kept.RUN | Kept.RESUME | Kept.LAST)
            if name != "sampler" or isinstance(self.sampler, str)
        }
        return {"target": self.target, **kept}

    def kept(self, where: Kept) -> dict[str, Any]:
        """The values that differ from their default and are kept somewhere, as JSON."""
        return {
            name: plain(value)
            for name, value in self._values(lambda said: where in said.kept).items()
        }

    def _values(self, is_wanted: Any) -> dict[str, Any]:
        """The options' values that are not the default."""
        found = {}
        for each in dataclasses.fields(Request):
            said, value = each.metadata.get("option"), getattr(self, each.name)
            if said is None or not is_wanted(said):
                continue
            makes = each.default_factory
            usual = each.default if makes is dataclasses.MISSING else makes()
            if value is not None and value != usual:
                found[each.name] = value
        return found

    @classmethod
    def known(cls, data: Mapping[str, Any]) -> Request:
        """Of what :meth:`to_dict` gave in any version, as much as this one knows.

        It is to be shown; to go on by it takes :meth:`from_dict`, which wants all of it.
        A limit that is not known is an error here too, since it has chosen the answer.
        """
        here = fields_of(cls, data)
        here["space"] = fields_of(SearchSpace, here.get("space") or {})
        request: Request = of_fields(cls, here)
        return request

    @classmethod
    def decided(cls, target: str, by: Mapping[str, Any]) -> Request:
        """The request by which settings were found, as far as ``tuned.json`` keeps it."""
        if unknown := by.keys() - {*kept_names(Request, Kept.VERIFY)}:
            what = f"the settings of {target} were decided by an unknown {min(unknown)}"
            raise UsageError(
                what, hint="verify them in the autocompile that wrote them"
            )
        try:
            request: Request = of_fields(cls, {"target": target, **by})
        except (TypeError, ValueError, AutocompileError) as error:
            what = f"what decided the settings of {target} is damaged: {error}"
            raise UsageError(what) from None
        return request

    # What it says -----------------------------------------------------------------------

    @property
    def total_s(self) -> float | None:
        """Seconds of the whole run; None: to the end of the list of settings."""
        return EFFORTS[self.effort] if self.budget_s is None else self.budget_s

    @property
    def compared(self) -> int:
        """Compiled settings of each phase that a run takes its time for; 0: it ends on time."""
        has_end = self.budget_s is not None or self.trials is not None
        return 0 if has_end or self.only else COMPARED.get(self.effort, 0)

    @property
    def environments(self) -> dict[str, str]:
        """The path of each other interpreter, by its name."""
        return paths_of(self.pythons)

    @property
    def recorded(self) -> RecordedCalls | None:
        """The calls, once their file was read."""
        return self.calls if isinstance(self.calls, RecordedCalls) else None

    def resumed(self, earlier: Request) -> Request:
        """This request for a run that was begun with an earlier one.

        Raises:
            UsageError: something is asked for that the run was not begun with.
        """
        begun = ("target", *kept_names(Request, Kept.RUN))
        for name in begun:
            mine, theirs = getattr(self, name), getattr(earlier, name)
            is_same = mine == theirs or (
                name == "target" and is_same_target(mine, theirs)
            )
            if is_same or (name != "target" and name not in (self.asked or ())):
                continue
            now, then = self._typed_apart(earlier, name)
            what = "another target" if name == "target" else "other options"
            raise UsageError(
                f"the run was made with {what}",
                f"it has {then or 'its default'}, now {now or 'the default'} was asked for",
                hint="leave the option out, or start a new run without --resume",
            )
        return dataclasses.replace(self, **{n: getattr(earlier, n) for n in begun})

    def _typed_apart(self, other: Request, name: str) -> tuple[str, str]:
        """How the options of a field in which two requests differ are typed, of each."""
        if name == "target":
            return self.target, other.target
        apart = [
            each
            for each in declared(Request)
            if each.path[0] == name and each.of(self) != each.of(other)
        ]
        # Those of a group say more than the group as a whole.
        apart = [each for each in apart if each.path[1:]] or apart

        def words(each: Declared, one: Request) -> list[str]:
            value = each.of(one)
            if isinstance(value, tuple) and value and each.path[1:]:
                return [each.option.flag, ",".join(str(v).lower() for v in value)]
            return typed(each, value)

        mine, theirs = (
            shlex.join(word for each in apart for word in words(each, one))
            for one in (self, other)
        )
        return mine, theirs

    def command(self, *more: str, names: Collection[str] = ()) -> str:
        """The command that tunes the target, with the options of these names."""
        line = ["autocompile", "tune", self.target, *more]
        for each in declared(Request):
            if each.path[0] in names:
                line += typed(each, each.of(self))
        return shlex.join(line)


def demand_options(kind: type, given: Mapping[str, Any]) -> None:
    """Check the names of options; a UsageError names the nearest one."""
    public = [
        f.name
        for f in dataclasses.fields(kind)
        if f.name not in ("only", "asked", "_", "target")
    ]
    for name in given:
        if name in public or name == "only":
            continue
        # As it is called on the command line, or about.
        typed_as = {each.name: each.path for each in reversed([*declared(kind)])}
        path = typed_as.get(name, ())
        close = difflib.get_close_matches(name, public, 1)
        hint = f"{close[0]}=..." if close else ", ".join(public)
        if len(path) == 1:
            hint = f"{path[0]}=..."
        elif path:
            group = {"limits": "Limits", "space": "SearchSpace"}[path[0]]
            hint = f"{path[0]}=autocompile.{group}({path[1]}=...)"
        raise UsageError(f"tune() has no option {name!r}", hint=hint)
