"""Tuned: the settings that a run found on its machine, to keep beside the code that uses them.

A TunedSet is what a file of them holds: an entry for each machine they were measured on.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autocompile.errors import UsageError
from autocompile.estimate.intervals import Interval
from autocompile.settings.config import EAGER, CompileConfig
from autocompile.store.reading import demand_positive, made

if TYPE_CHECKING:
    from autocompile.store.report import PhaseResult, Report


SCHEMA = 1
_FACTS: Mapping[str, Any] = {
    "fingerprint": Mapping[str, Any],
    "target": str,
    "batch_sizes": Mapping[str, int],
    "interpreters": Mapping[str, str],
}
FINGERPRINT = ("torch", "device", "device_name", "cuda", "cpu_capability", "threads")
"""What makes the same setting another machine code, or another speed."""


@dataclass(frozen=True)
class Choice:
    """What to use at one batch size of one phase."""

    config: CompileConfig  # eager mode where nothing was faster
    # At which it was measured; None where the phase has none.
    batch_size: int | None = None
    # Over eager mode, with the interval of other runs of the machine: ``value``, ``low``, ``high``.
    speedup: Mapping[str, float] = field(default_factory=dict)
    # In how many fresh processes that was measured; one confirms nothing.
    processes: int = 1

    def to_dict(self) -> dict[str, Any]:
        """As JSON; of the setting the backend, and what differs from the default."""
        plain = CompileConfig().to_dict()
        shown = {
            k: v
            for k, v in self.config.to_dict().items()
            if k == "backend" or v != plain[k]
        }
        return {
            "batch_size": self.batch_size,
            "config": shown,
            "speedup": {k: round(v, 4) for k, v in self.speedup.items()},
            "confirmed_processes": self.processes,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], phase: str = "") -> Choice:
        config = CompileConfig.from_dict(data["config"], phase)
        size = made(int | None, data["batch_size"], "batch_size")
        processes = made(int, data["confirmed_processes"], "confirmed_processes")
        demand_positive(batch_size=size)
        speedup = made(Mapping[str, float], data["speedup"], "speedup")
        if speedup:
            made(Interval, speedup, "speedup").demand_positive("the speed-up")
        return cls(config, size, speedup, processes)


@dataclass(frozen=True)
class Tuned:
    """The settings of a run."""

    # Of each phase by rising batch size; one of no batch size stands alone.
    phases: Mapping[str, tuple[Choice, ...]]
    # Of torch and the machine that they were measured with.
    fingerprint: Mapping[str, Any]
    target: str = ""  # what was tuned, as it was named
    # What the answer of each phase is about, where it has a batch size.
    batch_sizes: Mapping[str, int] = field(default_factory=dict)
    # Paths of other interpreters that settings are of, by their names.
    interpreters: Mapping[str, str] = field(default_factory=dict)
    # The file beside this one with compiled code: ``file`` and ``sha256``; empty without one.
    cache: Mapping[str, str] = field(default_factory=dict)
    # What decided, as JSON: the options of the run that ``verify`` judges by, where they
    # are not the default.
    decided_by: Mapping[str, Any] = field(default_factory=dict)
    # Where the file of settings was read; empty if they are of no file.
    folder: str = field(default="", compare=False)

    def of_other_ranks(self, here: int) -> str:
        """What to know where so many processes train together; empty if they were as many."""
        measured = int(self.decided_by.get("ranks", 1))
        if measured == here:
            return ""
        return (
            f"the settings were measured with {measured} rank{'s' * (measured != 1)}, and this "
            f"program has {here}: results are the same, speed may differ. "
            f"autocompile tune --ranks {here} measures it"
        )

    def at(self, phase: str, batch_size: int | None = None) -> Choice | None:
        """The choice for a batch size, or of the nearest one that was measured.

        Without a size, for the one that the run's answer is about.
        """
        choices = self.phases.get(phase)
        if not choices:
            return None
        wanted = batch_size or self.batch_sizes.get(phase)
        if wanted is None:
            return choices[-1]
        return min(
            choices, key=lambda c: abs(math.log((c.batch_size or wanted) / wanted))
        )

    def differences(self, here: Mapping[str, Any]) -> list[str]:
        """What differs between the machine of the settings and this one, in words."""
        both = unlike(self.fingerprint, here).items()
        return [f"{name} {there}, here {ours}" for name, (there, ours) in both]

    def tried(self) -> dict[str, list[tuple[int | None, dict[str, Any]]]]:
        """Batch size and config of each choice, by phase, as a plan holds them."""
        return {
            n: [(c.batch_size, c.config.to_dict()) for c in f]
            for n, f in self.phases.items()
        }

    def to_dict(self) -> dict[str, Any]:
        return {
            "autocompile_settings": SCHEMA,
            "target": self.target,
            "fingerprint": dict(self.fingerprint),
            "interpreters": dict(self.interpreters),
            "batch_sizes": dict(self.batch_sizes),
            **({"cache": dict(self.cache)} if self.cache else {}),
            **({"decided_by": dict(self.decided_by)} if self.decided_by else {}),
            "phases": {n: [c.to_dict() for c in cs] for n, cs in self.phases.items()},
        }

    @classmethod
    def from_dict(cls, data: Any, where: str = "the request") -> Tuned:
        """Read what :meth:`to_dict` gave; ``where`` names it in errors."""
        hint = "autocompile export last -o tuned.json"
        schema = data.get("autocompile_settings") if isinstance(data, Mapping) else None
        if schema != SCHEMA:
            what = f"{where} holds no settings" + (
                f" of schema {SCHEMA}" if schema else ""
            )
            raise UsageError(what, hint=hint)
        try:
            phases = {
                n: tuple(Choice.from_dict(each, n) for each in f)
                for n, f in data["phases"].items()
            }
            known = {"batch_sizes": data.get("own_batch_size", {})}  # its older name
            facts = {
                name: made(kind, {**known, **data}[name], name)
                for name, kind in _FACTS.items()
            }
            demand_positive(**facts["batch_sizes"])
            cache = made(Mapping[str, str], data.get("cache", {}), "cache")
            decided_by = made(
                Mapping[str, Any], data.get("decided_by", {}), "decided_by"
            )
            return cls(phases, cache=cache, decided_by=decided_by, **facts)
        except (
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
            RecursionError,
        ) as error:
            what = f"{where} is damaged: {type(error).__name__}: {error}"
            raise UsageError(what, hint=hint) from None

    @classmethod
    def from_report(cls, report: Report) -> Tuned:
        """The settings of a report."""
        every = report.phases.items()
        phases = {n: choices for n, phase in every if (choices := _choices(phase))}
        if not phases:
            what = "there is nothing to export: no phase has a result"
            raise UsageError(what, hint="autocompile show last")
        here = {k: report.environment.get(k) for k in FINGERPRINT}
        paths = {
            name: str(other.get("python_path"))
            for name, other in report.environments.items()
        }
        about = {n: report.phases[n].answer.batch_size for n in phases}
        return cls(
            phases,
            here,
            report.target.spec,
            {n: size for n, size in about.items() if size is not None},
            paths,
            decided_by=report.decided_by,
        )


def unlike(
    there: Mapping[str, Any],
    here: Mapping[str, Any],
    names: Sequence[str] = FINGERPRINT,
) -> dict[str, tuple[Any, Any]]:
    """What differs between two machines, of what is known of the first: both values by name."""
    both = {name: (there.get(name), here.get(name)) for name in names}
    if there.get("device"):  # which of several equal ones is no matter
        one, other = (
            str(machine.get("device")).partition(":")[0] for machine in (there, here)
        )
        both["device"] = one, other
    return {
        name: (one, other)
        for name, (one, other) in both.items()
        if one not in (None, other)
    }


def _choices(phase: PhaseResult) -> tuple[Choice, ...]:
    """One for each batch size that has an answer; none where the phase has none itself."""
    if phase.answer.best is None:
        return ()
    return tuple(
        Choice(
            best.config if answer.changes_something else EAGER,
            answer.batch_size,
            best.speedup.to_dict(),
            best.confirmed_processes or 1,
        )
        for answer in phase.answers
        if (best := answer.best)
    )


@dataclass(frozen=True)
class TunedSet:
    """The settings of one target on one machine or several.

    As JSON, one entry is written alone; several are a list of what each would be alone.
    """

    entries: tuple[Tuned, ...]  # at least one, the one to prefer among equals first

    def fitting(
        self,
        here: Mapping[str, Any],
        agree: Callable[[int, str], int] = lambda number, _: number,
    ) -> Tuned:
        """The entry of a machine, or else of the one that is most like it.

        ``agree`` makes of the number of an entry, and of a name of all entries, the number that all
        processes of a program take.
        """

        def distance(entry: Tuned) -> tuple[bool, bool, int]:
            differences = unlike(entry.fingerprint, here)
            return (
                "device" in differences,
                "device_name" in differences,
                len(differences),
            )

        if len(self.entries) == 1:
            return self.entries[0]
        own = min(self.entries, key=distance)
        name = hashlib.sha256(self.to_json().encode()).hexdigest()[:16]
        return self.entries[agree(self.entries.index(own), name)]

    def to_dict(self) -> dict[str, Any]:
        first, *others = [entry.to_dict() for entry in self.entries]
        return (
            {"autocompile_settings": SCHEMA, "machines": [first, *others]}
            if others
            else first
        )

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2) + "\n"

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "the request") -> TunedSet:
        """Read what :meth:`to_dict` gave; ``where`` names it in errors."""
        machines = data.get("machines", [data])
        if not isinstance(machines, list) or not machines:
            hint = "autocompile export RUN RUN -o tuned.json"
            raise UsageError(f"{where} is damaged: it lists no machines", hint=hint)
        return cls(tuple(Tuned.from_dict(entry, where) for entry in machines))

    @classmethod
    def from_reports(cls, reports: Mapping[str, Report]) -> TunedSet:
        """The settings of reports of one target, by name."""
        entries: dict[str, Tuned] = {}
        for name, report in reports.items():
            entry = Tuned.from_report(report)
            for other, earlier in entries.items():
                if earlier.fingerprint == entry.fingerprint:
                    raise UsageError(
                        f"{other} and {name} are of the same machine, and a file holds one entry "
                        f"for each: {entry.fingerprint['device_name']}",
                        hint=f"autocompile show {other} {name}   (shows which is faster)",
                    )
            entries[name] = entry
        return cls(tuple(entries.values()))

    @classmethod
    def read(cls, source: Any) -> TunedSet:
        """Settings of a file, a mapping as in such a file, a Result, or of settings."""
        if isinstance(source, TunedSet):
            return source
        if isinstance(source, Tuned):
            return cls((source,))
        if isinstance(source, Mapping):
            return cls.from_dict(source, "the mapping")
        if not isinstance(source, (str, os.PathLike)):
            return cls((Tuned.from_report(source.report),))
        path = Path(source)
        try:
            data = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError, RecursionError) as error:  # no file, or no JSON
            hint = f"autocompile export last -o {path}"
            raise UsageError(f"cannot read {path}: {error}", hint=hint) from None
        entries = cls.from_dict(
            data if isinstance(data, Mapping) else {}, str(path)
        ).entries
        return cls(
            tuple(replace(one, folder=str(path.resolve().parent)) for one in entries)
        )
