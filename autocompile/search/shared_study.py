"""A study in a database that several drivers work on, each with a run of its own.

A setting is tried by one driver, and the others learn its value and outcome. What may be the best
is then tried by every driver, since each races settings by records of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from autocompile.errors import RunError
from autocompile.search.leases import TROUBLE, Leases, first_line, unusable
from autocompile.search.optuna_study import OptunaStudy
from autocompile.settings.config import DEFAULT_INDUCTOR
from autocompile.settings.setting import Cell, Setting
from autocompile.store.record import Outcome, Record

__all__ = ["SharedStudy"]

# Of the best of a phase and batch size, those of other drivers are tried here too.
_ADOPTED = 3
_RIVAL = 0.9  # of the speed of the best; what is slower in one process does not win a race
_POLL_S = 0.5
_NAMED = 3  # settings that a message names
# Ends that say more about a driver's machine at that time than about the setting.
_OF_ITS_MACHINE = {Outcome.INFRASTRUCTURE, Outcome.TIMEOUT, Outcome.OUT_OF_MEMORY}


@dataclass
class SharedStudy(OptunaStudy):
    """An Optuna study of which other drivers try settings too.

    Without its database it goes on alone.

    Attributes:
        driver: names this driver's run in the database.
        about: what all drivers must have in common, by name.
    """

    driver: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._leases: Leases | None = None
        self._mine: dict[Setting, float | None] = {}  # begun here, with their values
        self._theirs: dict[Setting, float | None] = {}  # ended elsewhere, with their values
        self._awaited: dict[Setting, optuna.Trial] = {}  # that other drivers are at
        self._taken: list[Setting] = []  # of drivers that have died
        self._read: set[int] = set()  # rows of the database
        self._first: dict[tuple[Any, Any], Setting] = {}  # by driver and number
        self._codes: dict[Setting, Setting] = {}  # which one each has the code of

    @property
    def is_done(self) -> bool:
        return super().is_done and not self._taken and not self._to_adopt()

    @property
    def left(self) -> int:
        return super().left + len(self._taken) + len(self._to_adopt())

    def restore(self, records: Sequence[Record]) -> None:
        """Open the database, add the records to both studies, and read those of the others.

        Raises:
            RunError: the storage cannot be used, or its study is of another target or machine.
        """
        ended = (r for r in records if r.outcome is not Outcome.INTERRUPTED)
        self._mine = {Setting.of(r): self._row(r).value for r in ended}
        try:
            self._leases = Leases(self._storage().engine, self.name, self.driver)
            said = self._leases.agreed(json.dumps(self.about, sort_keys=True))
        except TROUBLE as error:
            raise unusable(str(self.database), error) from error
        self._demand_same(json.loads(said))
        super().restore(records)
        self._sync()

    def ask(self) -> Setting | None:
        """The next setting that no other driver has; None if none can be tried now."""
        self._sync()
        if self._taken:
            return self._begun(self._taken.pop(0))
        # Before what nobody has tried, since the budget may end before the search does.
        if found := self._to_adopt() if super().is_done else self._leaders():
            return self._begun(found[0])
        while (setting := super().ask()) is not None:
            if self._is_ours(setting):
                return self._begun(setting)
        found = self._taken or self._to_adopt()
        return self._begun(found.pop(0)) if found else None

    def tell(self, record: Record) -> None:
        """Report a finished trial, whose record is already on disk."""
        setting = Setting.of(record)
        self._mine[setting] = self._row(record).value
        super().tell(record)
        if self._leases is not None:
            try:
                self._leases.release(_key(setting))
            except TROUBLE as error:
                self._go_on_alone(error)

    def wait(self) -> bool:
        """Wait for other drivers for a moment; False where there is none to wait for."""
        if not self._awaited and not self._taken:
            return False
        time.sleep(_POLL_S)
        self.keep()
        self._sync()
        return True

    def keep(self) -> None:
        """Tell other drivers that this one is alive; to be called every few seconds."""
        if self._leases is not None:
            try:
                self._leases.keep()
            except TROUBLE as error:
                self._go_on_alone(error)

    def _begun(self, setting: Setting) -> Setting:
        self._mine[setting] = self._theirs.get(setting)  # until it has its own
        return setting

    def _is_ours(self, setting: Setting) -> bool:
        """Claim a setting; one that another driver has, or has just ended, waits for its result."""
        if self._leases is None or _is_everyones(setting):
            return True
        self._awaited[setting] = self._open.pop(setting)
        try:
            if not self._leases.claim(_key(setting)):
                return False
            self._read_rows()
            if setting not in self._awaited:  # it has ended since the last time
                self._leases.release(_key(setting))
                return False
        except TROUBLE as error:
            self._go_on_alone(error)
            return False
        self._open[setting] = self._awaited.pop(setting)
        return True

    def _sync(self) -> None:
        """Read what others have ended, and take over the settings of those that have died."""
        if self._leases is None:
            return
        try:
            # Before the rows: a setting that is free by then has its row already.
            self._leases.others()
            self._read_rows()
            for setting in list(self._awaited):
                if self._leases.take_over(_key(setting)):
                    self._open[setting] = self._awaited.pop(setting)
                    self._taken.append(setting)
        except TROUBLE as error:
            self._go_on_alone(error)

    def _read_rows(self) -> None:
        if self._disk is None:
            return
        for row in self._disk.get_trials(deepcopy=False):
            if row.number in self._read or not row.state.is_finished():
                continue
            self._read.add(row.number)
            self._note_code(row)
            # What was stopped before its end is still to be tried.
            is_stopped = row.state is TrialState.FAIL
            if not (
                is_stopped or self._is_own(row) or row.user_attrs["outcome"] in _OF_ITS_MACHINE
            ):
                self._learn(row)

    def _note_code(self, row: FrozenTrial) -> None:
        """Note the setting that a row has the code of: the same driver's, read before it."""
        with contextlib.suppress(KeyError):
            setting, about = self.sampler.setting(row.params), row.user_attrs
            first = self._first.get((about["driver"], about.get("same_as")), setting)
            self._codes[setting] = self._first[about["driver"], about["number"]] = first

    def _learn(self, row: FrozenTrial) -> None:
        try:
            setting = self.sampler.setting(row.params)
        except KeyError:
            return
        if _is_everyones(setting) or setting in self._theirs or setting in self._mine:
            return
        self._theirs[setting] = row.value
        if (trial := self._awaited.pop(setting, None)) is None:
            self._memory.add_trial(row)
            return
        for name, told in row.user_attrs.items():
            trial.set_user_attr(name, told)
        self._memory.tell(trial, row.value, state=row.state)

    def _to_adopt(self, most: int = _ADOPTED) -> list[Setting]:
        """Settings of others that may be best here, so that they can be raced.

        ``most``: of how many of the best codes at each phase and batch size.
        """
        values: dict[Cell, dict[Setting, float]] = {}
        for setting, value in {**self._theirs, **self._mine}.items():
            if value is not None:
                values.setdefault(setting.cell, {})[setting] = value
        found = []
        for at in values.values():
            codes: dict[Setting, list[Setting]] = {}
            for setting in sorted(at, key=lambda s: -at[s]):
                codes.setdefault(self._codes.get(setting, setting), []).append(setting)
            best = list(codes.values())[:most]
            least = max(1.0, _RIVAL * at[best[0][0]])
            others = (same[0] for same in best if not self._mine.keys() & same)
            found += [s for s in others if at[s] > least]
        return found

    def _leaders(self) -> list[Setting]:
        """Of others the best of each phase and batch size, where eager mode is tried here."""
        cells = {s.cell for s in self._mine if s.config.is_plain_eager}
        return [s for s in self._to_adopt(most=1) if s.cell in cells]

    def _go_on_alone(self, error: Exception) -> None:
        self._leases = self._disk = None
        self._open |= self._awaited
        self._taken += self._awaited
        self._awaited = {}
        self.warn(f"{self.place} cannot be used ({first_line(error)}); the search goes on alone")

    def _demand_same(self, there: Mapping[str, Any]) -> None:
        unlike = [name for name, value in self.about.items() if there.get(name) != value]
        if unlike:
            theirs, ours = there.get(unlike[0]), self.about[unlike[0]]
            raise RunError(
                f"the study {self.name} in {self.place} is of another {unlike[0]}",
                f"{_beside(theirs, ours)} there, {_beside(ours, theirs)} here",
                "drivers that share a study tune one target on machines of one kind, alike",
                hint="another --study",
            )

    def _is_own(self, row: FrozenTrial) -> bool:
        return row.user_attrs.get("driver") == self.driver

    def _row(self, record: Record) -> FrozenTrial:
        row = super()._row(record)
        row.user_attrs = {**row.user_attrs, "driver": self.driver}
        return row


def _is_everyones(setting: Setting) -> bool:
    """Whether each driver measures it: what all settings are compared with."""
    return setting.config.is_baseline or setting.config == DEFAULT_INDUCTOR


def _beside(own: Any, other: Any) -> str:
    """A value; of a list how long it is, and what the other one has not."""
    if not isinstance(own, list):
        return str(own)
    more = [each for each in own if each not in (other or ())]
    named = f" ({'; '.join(more[:_NAMED])}{', ...' * (len(more) > _NAMED)})" if more else ""
    return f"{len(own)}, of them {len(more)} that the other has not{named}"


def _key(setting: Setting) -> str:
    text = json.dumps([setting.phase, setting.batch_size, setting.config.to_dict()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
