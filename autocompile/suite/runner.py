"""``autocompile suite``: a run for each of many models, within one budget, and one table of all."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autocompile import api
from autocompile.errors import (
    AnotherMachine,
    AutocompileError,
    NothingWorked,
    RunError,
    TargetError,
    UsageError,
    first_words,
)
from autocompile.request import Request
from autocompile.settings.option import Kept, kept_names
from autocompile.store import runs, targets
from autocompile.store.files import make_folder, write_json
from autocompile.store.record import RunFolder
from autocompile.store.report import Report
from autocompile.store.run import Run
from autocompile.store.targets import target_spec
from autocompile.suite.members import members_of
from autocompile.suite.rows import SUITE, Member, Row, Suite, rows_of

if TYPE_CHECKING:
    from autocompile.cluster.tune_all import Machines

# Share of the budget that all models get alike; the rest goes where most may be won.
_FIRST = 0.7
# Seconds in less than which a run cannot try even plain torch.compile(). A model whose share is
# less gets as many, if they are left, and none is begun with less than half of them.
_LEAST_S = 45.0
# A run in which no compile has ended gets this many times the seconds that it had.
_MORE = 1.5
_WORTH = 0.01  # a likely gain below this, as a fraction, is none


@dataclass
class Runner:
    """Tunes the members of a suite one after another.

    Attributes:
        budget_s: of the whole; None: each as long as its effort says.
        tune: makes a run and gives the reports of it, by a word that tells several apart.
        say: tells the user of errors.
        note: tells the user where it is.
        began: when the budget began, by ``clock``; None: now.
    """

    folder: Path
    suite: Suite
    budget_s: float | None
    tune: Callable[..., Mapping[str, Report]]
    say: Callable[[str], None]
    note: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    began: float | None = None

    def __post_init__(self) -> None:
        self._began = self.clock() if self.began is None else self.began
        self._waited_s = 0.0
        self._earlier_s = self.suite.wall_s
        self._errors: dict[str, str] = {}
        for row in self.suite.rows:  # of an earlier session; what works now replaces it
            if row.verdict == "failed" and not row.settings:
                self._errors[Path(row.run).name] = row.message
        self._reports: dict[str, Mapping[str, Report]] = {}
        # Those that ended with another error than that nothing has worked yet.
        self._hopeless: set[str] = set()
        # Where the runs of earlier sessions were made, by kind of machine.
        self._machines: dict[str, Mapping[str, Any]] = {}
        self._again = Counter[
            str
        ]()  # how often a run got some of the rest of the budget

    def run(self) -> Suite:
        """The suite with all rows; Ctrl-C ends it with those that there are."""
        make_folder(self.folder)
        done = {m.folder for m in self.suite.members if self._is_at_an_end(m)}
        for reports in self._reports.values():
            for kind, report in reports.items():
                self._machines.setdefault(kind, report.environment)
        self._save(True)
        missing = len(self.suite.members) - len(done)
        least_s = _LEAST_S * missing
        if self.budget_s is not None and self.budget_s < least_s:
            self.say(
                f"warning: {missing} models in {self.budget_s:.0f} s are many: "
                f"with less than {least_s:.0f} s those at the end get no result"
            )
        try:
            count = len(self.suite.members)
            for number, member in enumerate(self.suite.members):
                if member.folder in done or self._left_s() < _LEAST_S / 2:
                    continue
                left = sum(m.folder not in done for m in self.suite.members[number:])
                self._tune(member, self._share_s(left), f"{number + 1} of {count}")
            while promising := self._most_promising():
                one, share_s = promising
                self._again[one.folder] += 1
                self._tune(one, share_s, "once more")
        except KeyboardInterrupt:
            return self._save(True)
        return self._save(False)

    def _left_s(self) -> float:
        if self.budget_s is None:
            return float("inf")
        return self.budget_s - (self.clock() - self._began - self._waited_s)

    def waited(self, seconds: float) -> None:
        """A model waited for another autocompile, which takes nothing of the budget."""
        self._waited_s += seconds

    def _share_s(self, members: int) -> float | None:
        """The seconds of a model's first run: an equal part of what is left for all of these.

        What one does not use is for those after it, and none gets more than there is.
        """
        # Everything that is named is tried.
        if self.budget_s is None or self.suite.fixed:
            return None
        left_s = self._left_s()
        first = left_s - (1 - _FIRST) * self.budget_s
        return min(left_s, max(_LEAST_S, first / members))

    def _tune(self, member: Member, budget_s: float | None, which: str) -> None:
        phases = "" if member.phases is None else f", {', '.join(member.phases)}"
        share = "" if budget_s is None else f", {budget_s:.0f} s"
        self.note(f"{which}: {member.target}{phases}{share}")
        folder = self.folder / member.folder
        found: Mapping[str, Report] = {}
        try:
            found = self.tune(
                member,
                bool(_runs(folder)),
                budget_s=budget_s,
                run_dir=folder,
                waited=self.waited,
                machines=self._machines,
            )
            self._reports[member.folder] = found
            self._errors.pop(member.folder, None)
        except KeyboardInterrupt:  # of a cluster, where some may have ended
            self._is_at_an_end(member)
            raise
        except AnotherMachine:  # its rows cannot stand beside the others
            self._save(True)
            raise
        except Exception as error:
            if self._is_of_all(error):
                raise
            self._failed(member, error)
        self._save(True)
        if any(report.interrupted for report in found.values()):
            raise KeyboardInterrupt

    def _is_of_all(self, error: Exception) -> bool:
        """Whether an error is of the request, and so of every model."""
        is_asked = isinstance(error, UsageError) and not isinstance(error, TargetError)
        return is_asked and not self._reports and not self._errors

    def _failed(self, member: Member, error: Exception) -> None:
        """Note an error of a model, which is a row; the others go on."""
        if isinstance(error, AutocompileError):
            what, text = error.what, error.text()
        else:
            what = f"a defect in autocompile: {first_words(error)}"
            text = f"{member.target}: {what}"
        self._errors[member.folder] = what
        if not isinstance(error, NothingWorked):
            self._hopeless.add(member.folder)
        # It may have a report all the same, of before or of nothing that worked.
        if not self._is_at_an_end(member) and member.folder in self._hopeless:
            self._reports.pop(member.folder, None)
        self.say(f"error: {text}")

    def _is_at_an_end(self, member: Member) -> bool:
        """Whether an earlier session has finished its run with a result; its report is read."""
        found = _runs(self.folder / member.folder)
        if not found or not all(
            (path / "report.json").exists() for path in found.values()
        ):
            return False
        try:
            reports = {kind: api.load(path).report for kind, path in found.items()}
        except AutocompileError:  # it is damaged, which the next attempt says
            return False
        self._reports[member.folder] = reports
        phases = [
            phase for report in reports.values() for phase in report.phases.values()
        ]
        is_over = not any(report.interrupted for report in reports.values())
        return is_over and any(phase.answer.best for phase in phases)

    def _worth(self, member: Member) -> float:
        """The gain that the untried settings of a run may still bring, as a fraction.

        A run without any result gets more time once.
        """
        if member.folder in self._hopeless:
            return 0.0
        reports = self._reports.get(member.folder, {}).values()
        answers = [
            phase.answer.best for report in reports for phase in report.phases.values()
        ]
        if not any(answers):
            return float("inf") if not self._again[member.folder] else 0.0
        spaces = [s for run in self._made(member) for s in run.spaces.values()]
        return max(
            (row.likely for one in spaces for row in one.rest or ()), default=0.0
        )

    def _made(self, member: Member) -> list[Run]:
        """The runs of a member; one that cannot be read gets no more of the budget."""
        found = []
        for path in _runs(self.folder / member.folder).values():
            with contextlib.suppress(RunError):
                found.append(Run.read(RunFolder(path)))
        return found

    def _least_s(self, member: Member) -> float:
        """The least seconds of use: where no compiled setting has ended, more than it had."""
        reports = self._reports.get(member.folder, {}).values()
        phases = [phase for report in reports for phase in report.phases.values()]
        if not any(p.compiled_listed and not p.compiled_tried for p in phases):
            return _LEAST_S
        had = [run.request.budget_s or 0.0 for run in self._made(member)]
        return max(_LEAST_S, _MORE * max(had, default=0.0))

    def _most_promising(self) -> tuple[Member, float] | None:
        """The member that the rest of the budget may bring most, and its share in seconds.

        Those that had the fewest come first, and those for which there is enough left; None where
        there is nothing to win.
        """
        left_s = self._left_s()
        if self.budget_s is None or left_s < _LEAST_S or self.suite.fixed:
            return None
        worth = {m.folder: self._worth(m) for m in self.suite.members}
        members = [m for m in self.suite.members if worth[m.folder] > _WORTH]
        members = [m for m in members if self._least_s(m) <= left_s] or members
        if not members:
            return None
        least = min(self._again[m.folder] for m in members)
        turn = [m for m in members if self._again[m.folder] == least]
        one = max(turn, key=lambda m: worth[m.folder])
        return one, min(left_s, max(self._least_s(one), left_s / len(turn)))

    def _save(self, interrupted: bool) -> Suite:
        rows: list[Row] = []
        environment: Mapping[str, Any] = self.suite.environment
        for member in self.suite.members:
            run = str(self.folder / member.folder)
            message = self._errors.get(member.folder, "not begun")
            if member.folder not in self._reports:
                phase = (member.phases or ("",))[0]
                for size in member.batch_sizes or (None,):
                    none = Row(
                        target=member.target, run=run, phase=phase, batch_size=size
                    )
                    none = dataclasses.replace(none, message=message)
                    was_begun = member.folder in self._errors
                    rows.append(
                        none
                        if was_begun
                        else dataclasses.replace(none, verdict="not_run")
                    )
            for kind, report in self._reports.get(member.folder, {}).items():
                environment = environment or report.environment
                one = dataclasses.replace(
                    member, target=member.target + f" ({kind})" * bool(kind)
                )
                rows += rows_of(one, report.run_dir, report)
        self.suite = dataclasses.replace(
            self.suite,
            rows=tuple(rows),
            environment=environment,
            interrupted=interrupted,
            wall_s=self._earlier_s + self.clock() - self._began,
        )
        write_json(self.folder / SUITE, self.suite.to_dict())
        return self.suite


def _runs(folder: Path) -> dict[str, Path]:
    """The run of a member by an empty name, or on a cluster those of the types of machines."""
    if (folder / "run.json").exists():
        return {"": folder}
    return {path.parent.name: path.parent for path in sorted(folder.glob("*/run.json"))}


def run_suite(
    what: str | None,
    request: Request,
    parts: api.Parts,
    *,
    fixed: bool = False,
    say: Callable[[str], None] = print,
    note: Callable[[str], None] = print,
) -> tuple[Path, Suite]:
    """Tune every model of a suite; the folder of its runs, and its rows.

    Args:
        what: as :func:`~autocompile.suite.members.members_of` takes it; None to resume the last suite.
        request: what is asked for of every member, without a target; its budget, folder
            and ``resume`` are of the whole suite.
        fixed: time the settings of the space and nothing else.

    Raises:
        UsageError: the suite or an option is none.
        RunError: nothing to resume, or another autocompile is at work here.
        AnotherMachine: a suite that is resumed was begun on another one.
    """
    from autocompile.execute.exclusive import held
    from autocompile.execute.starter import shared_fork_servers

    began = parts.began
    parts = dataclasses.replace(parts, began=None)  # each member has a share of its own
    if request.ray is None and parts.executor is None:
        # Another command ends this one here only: a model waits for it.
        with held("autocompile suite", say, request.wait) as waited_s:
            if began is not None:
                began += waited_s
    folder, suite = (_resumed if request.resume else _begun)(what, request, fixed)
    every = _of_every_member(suite, request)

    members = _Members(every, parts, say)
    with shared_fork_servers():  # torch and a library are imported once
        runner = Runner(
            folder, suite, request.budget_s, members.tune, say, note, began=began
        )
        return folder, runner.run()


@dataclass(frozen=True)
class _Members:
    """Makes the runs of a suite's members."""

    every: Request  # what each is asked for, but for what it has of its own
    parts: api.Parts
    say: Callable[[str], None]

    def tune(
        self,
        member: Member,
        resume: bool,
        machines: Machines,
        waited: Callable[[float], None],
        **more: Any,
    ) -> Mapping[str, Report]:
        """Make or resume a run; its report by an empty name, or those of the machines' types."""
        space = dataclasses.replace(self.every.space, batch_sizes=member.batch_sizes)
        request = dataclasses.replace(
            self.every,
            target=target_spec(member.target),
            phases=member.phases,
            space=space,
            resume=resume,
            asked=frozenset(),  # the suite keeps what its members were begun with
            **more,
        )
        if request.ray is not None:
            return _on_cluster(request, self.parts, machines, self.say)
        machine = machines.get("") if machines else None
        here = dataclasses.replace(self.parts, machine=machine, waited=waited)
        return {"": api.tune_with(request, here).report}


def _begun(what: str | None, request: Request, fixed: bool) -> tuple[Path, Suite]:
    """The folder of a new suite, and its members."""
    if what is None:
        hint = "autocompile suite timm   (or a folder of targets, or list.toml)"
        raise UsageError("no suite is named", hint=hint)
    members = members_of(what, request.phases, request.space.batch_sizes)
    is_library = what in targets.LIBRARIES
    if is_library and request.ray is None and util.find_spec(what) is None:
        raise UsageError(f"{what} is not installed", hint=f"pip install {what}")
    if request.run_dir is None:
        folder = runs.new_folder(Path(what).stem).path
    else:
        folder = Path(request.run_dir)
        make_folder(folder)  # raises another error where it cannot
        if any(folder.iterdir()):
            raise RunError(
                f"the folder {folder} is not empty", hint="another, or --resume"
            )
    kept = request.kept(Kept.SUITE)
    return folder, Suite(name=what, members=members, fixed=fixed, options=kept)


def _resumed(what: str | None, request: Request, fixed: bool) -> tuple[Path, Suite]:
    """The folder of a suite that goes on, and the suite with what it was begun with.

    How trials are run may be changed: a longer timeout, or more jobs. What is measured
    may not, and a suite stays on its machine or on its cluster.
    """
    folder = latest(what) if request.run_dir is None else Path(request.run_dir)
    suite = Suite.read(folder)
    if what not in (None, suite.name):
        raise UsageError(
            f"{folder} is of the suite {suite.name}, and not of {what}",
            hint="without --run-dir the last suite of that name goes on",
        )
    given = request.kept(Kept.SUITE)
    fixed_names = {*kept_names(Request, Kept.RUN)} & (request.asked or {*()})
    moves = "ray" in given and "ray" not in suite.options
    if fixed or fixed_names or moves:
        raise UsageError(
            f"{folder} goes on with what it was begun with, and other options are given",
            hint="autocompile suite --resume   (with a --budget), or a new suite",
        )
    return folder, dataclasses.replace(suite, options={**suite.options, **given})


def _of_every_member(suite: Suite, request: Request) -> Request:
    """What every member is asked for, but for its target, phases and batch sizes."""
    kept = Request.from_dict({"target": "", **suite.options})
    kept = dataclasses.replace(kept, wait=True)
    if suite.fixed:  # everything that is named is tried
        space = kept.space.without_a_search()
        return dataclasses.replace(kept, space=space, effort="full")
    if request.budget_s is None and "effort" not in suite.options:
        return dataclasses.replace(kept, effort="quick")
    return kept


def _on_cluster(
    request: Request, parts: api.Parts, machines: Machines, say: Callable[[str], None]
) -> Mapping[str, Report]:
    """Tune a member on the stations; its reports by their types of machines."""
    from autocompile.cluster.tune_all import tune_all

    outcome = tune_all(request, str(parts.progress), machines)
    for kind, error in outcome.errors.items():
        say(f"error: {request.target} on {kind}: {first_words(error)}")
    if outcome.interrupted:
        raise KeyboardInterrupt
    if not outcome.results:
        raise next(iter(outcome.errors.values()))
    return {kind: result.report for kind, result in outcome.results.items()}


def latest(name: str | None = None) -> Path:
    """The folder of the last suite, or of the last one of that name."""
    found = sorted(runs.under.glob(f"*/{SUITE}"), key=lambda path: path.stat().st_mtime)
    for path in reversed(found):
        if name is None or _name_of(path.parent) == name:
            return path.parent
    of_name = "" if name is None else f" of {name}"
    raise RunError(
        f"there is no suite{of_name} under ./{runs.under} to resume",
        hint=f"autocompile suite {name or 'timm'}   (begins one)",
    )


def _name_of(folder: Path) -> str | None:
    """The name of a folder's suite; None where its file cannot be read."""
    try:
        return Suite.read(folder).name
    except AutocompileError:
        return None
