"""Where jobs run, and what becomes of them when stations are lost: with scripted stations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from fakes import FakeExecutor, ScriptedStations, failed, probed
from scripts import SPACE, Listener, script, tune

import autocompile
from autocompile.cluster.dispatch import ClusterExecutor
from autocompile.cluster.links import _RayLink
from autocompile.cluster.wire import Do, Say, encode
from autocompile.errors import RunError, UsageError
from autocompile.execute.executor import Ended, Ending, Event, Told
from autocompile.execute.job import JobFactory
from autocompile.protocol.requests import (
    Header,
    ProbeRequest,
    Side,
    TimingLimits,
    TrialRequest,
)
from autocompile.settings.config import CompileConfig
from autocompile.store.record import Outcome, Record, RunFolder

PLAIN, ANY = CompileConfig("inductor"), CompileConfig("inductor", freezing=True)


class Desk:
    """Starts jobs on scripted stations and keeps what happens."""

    def __init__(
        self,
        work: Path,
        names: str,
        probes: dict[str, Ending] | None = None,
        make: Callable[[str], FakeExecutor] | None = None,
        **more: Any,
    ) -> None:
        def usual(name: str) -> FakeExecutor:
            return FakeExecutor(script, (probes or {}).get(name, probed()))

        self.stations = ScriptedStations(names.split(), make or usual, **more)
        self.executor = ClusterExecutor(
            self.stations.links, self.stations.receive, self.stations.clock
        )
        folder = RunFolder(work / "run")
        folder.create()
        self.factory = JobFactory(folder, Header("net.py"), 60.0, None)
        self.events: list[Event] = []

    def probe(self) -> Ending:
        self.executor.start(
            self.factory.probe_job(
                ProbeRequest(header=self.factory.header, batch_size=4), False
            )
        )
        return self.ending(-1)

    def trial(self, config: CompileConfig = ANY, fresh: bool = False) -> int:
        number = self.factory.next_number()
        request = TrialRequest(
            header=self.factory.header,
            number=number,
            phase="forward",
            sides=(Side(config),),
            batch_size=4,
        )
        self.executor.start(self.factory.job(request, fresh=fresh))
        return number

    def race(self, takes_turns: bool = False) -> int:
        number, config = self.factory.next_number(), CompileConfig("inductor")
        request = TrialRequest(
            header=self.factory.header,
            number=number,
            phase="forward",
            batch_size=4,
            sides=(Side(config, 0, str(self.factory.cache_of(0)), True),),
            limits=TimingLimits.exactly(8, 1.0),
            takes_turns=takes_turns,
        )
        self.executor.start(self.factory.job(request))
        return number

    def ending(self, number: int) -> Ending:
        while not (found := [e for e in self.ended if e.number == number]):
            self.events += self.executor.wait(1000.0)
        return found[0].ending

    @property
    def ended(self) -> list[Ended]:
        return [e for e in self.events if isinstance(e, Ended)]

    @property
    def told(self) -> list[str]:
        return [e.text for e in self.events if isinstance(e, Told)]

    def at(self, number: int) -> list[str]:
        """The stations to which a job was sent."""
        sent = self.stations.sent
        return [
            n for n, m in sent if m["do"] is Do.START and m["job"]["number"] == number
        ]


Make = Callable[..., Desk]


@pytest.fixture
def desk(work: Path) -> Make:
    return lambda *args, **more: Desk(work, *args, **more)


def test_jobs_go_where_there_is_room_and_wait_where_there_is_none(desk: Make) -> None:
    one = desk("a b", slots=2)
    one.probe()
    assert one.executor.slots == 4
    numbers = [one.trial() for _ in range(5)]
    assert [one.at(n) for n in numbers] == [["a"], ["b"], ["a"], ["b"], []]
    assert one.ending(numbers[-1]).outcome is Outcome.OK
    assert one.at(numbers[-1]) == ["a"]


def test_the_probe_goes_to_all_and_one_speaks(desk: Make) -> None:
    one = desk("a b c")
    assert one.probe().outcome is Outcome.OK
    assert one.at(-1) == ["a", "b", "c"]
    assert len(one.ended) == 1


def test_who_has_another_machine_is_left_out_with_a_word(desk: Make) -> None:
    other = {**probed().payload["environment"], "device_name": "another CPU"}
    one = desk("a b", {"b": probed(environment=other)})
    one.probe()
    assert [s.name for s in one.executor.stations] == ["a"]
    assert "b: left out: its machine differs from that of a" in one.told[0]
    assert "device_name is another CPU, not a CPU" in one.told[0]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("driver", "535.1"),
        ("power_limit_w", 300.0),
        ("torch", "2.11.0"),
        ("python", "3.10.1"),
    ],
)
def test_who_has_another_driver_or_less_power_is_left_out(
    desk: Make, key: str, value: Any
) -> None:
    usual = {
        **probed().payload["environment"],
        "driver": "570.86",
        "power_limit_w": 700.0,
    }
    one = desk(
        "a b",
        {"a": probed(environment=usual), "b": probed(environment=usual | {key: value})},
    )
    one.probe()
    assert [s.name for s in one.executor.stations] == ["a"]
    assert f"{key} is {value}, not {usual[key]}" in one.told[0]


def test_who_runs_another_autocompile_is_left_out_before_it_does_anything(
    desk: Make,
) -> None:
    one = desk("a b", facts={"b": {"autocompile": "0.0.9"}})
    one.probe()
    assert one.told == ["b: left out: autocompile is 0.0.9 there"]
    assert one.at(-1) == ["a"]
    with pytest.raises(UsageError, match="no station has started") as error:
        desk("a", facts={"a": {"autocompile": "0.0.9"}})
    assert "a: autocompile is 0.0.9 there" in error.value.text()


def test_what_a_station_waits_for_is_told_and_the_reason_if_it_does_not_start() -> None:
    stations = ScriptedStations(["a", "b"], lambda name: FakeExecutor(script, probed()))
    busy, (b, *_) = (
        "waiting for the autocompile that is at work: pid 3",
        stations.links[1:],
    )
    stations._events = [e for e in stations._events if e[2] is not b]
    stations._put(b, encode(Say.TOLD, text=busy), 0.0)
    executor = ClusterExecutor(stations.links, stations.receive, stations.clock)
    assert [s.name for s in executor.stations] == ["a"]
    told = [e.text for e in executor.wait(0.0) if isinstance(e, Told)]
    assert told == [f"b: {busy}", f"b: lost ({busy})"]
    executor.close()
    with pytest.raises(RunError, match="no station is left") as error:
        executor.wait(1.0)
    assert f"b: {busy}" in error.value.text()


def test_a_station_whose_probe_fails_alone_is_left_out(desk: Make) -> None:
    one = desk("a b", {"a": failed("import_error", "import", "no module named x")})
    assert one.probe().outcome is Outcome.OK
    assert [s.name for s in one.executor.stations] == ["b"]
    assert "import_error (no module named x)" in one.told[0]


def test_where_every_probe_fails_the_target_is_to_blame(desk: Make) -> None:
    broken = failed("import_error", "import", "no module named x")
    one = desk("a b", {"a": broken, "b": broken})
    assert one.probe().outcome is Outcome.IMPORT_ERROR
    assert not one.told


def test_a_lost_job_runs_elsewhere_and_alone(desk: Make) -> None:
    one = desk("a b", slots=2)
    one.probe()
    first, second, third = (one.trial() for _ in range(3))
    assert one.at(first) == ["a"] and one.at(third) == ["a"]
    one.stations.lose("a")
    assert one.ending(first).outcome is Outcome.OK
    assert one.ending(third).outcome is Outcome.OK
    assert one.at(first) == one.at(third) == ["a", "b"]
    order = [e.number for e in one.ended]
    assert order == [-1, second, first, third], (
        "one after another once what ran there had ended"
    )
    assert (
        f"a: lost (it does not answer); trial {first}, {third} is put back" in one.told
    )


def test_why_an_actor_has_died_is_told(
    desk: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    cause = "The actor died unexpectedly.\n\tpid: 3\nThe actor is dead because its node has died."

    def died(pending: Any) -> None:
        raise ray.exceptions.ActorUnavailableError(cause, None)

    monkeypatch.setattr(ray, "get", died)
    link: Any = _RayLink.__new__(_RayLink)
    link._pending, link._ray = None, ray
    one = desk("a b")
    one.probe()
    a = one.executor.stations[0].link
    monkeypatch.setattr(
        one.executor, "_receive", lambda *_: [(a, m) for m in link.taken()]
    )
    number = one.trial()
    one.events += one.executor.wait(1.0)
    (told,) = one.told
    assert told.startswith("a: lost (") and "because its node has died" in told
    assert told.endswith(f"; trial {number} is put back")


def test_a_line_that_makes_no_sense_is_the_end_of_the_station(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "get", lambda _: ["Segmentation fault"])
    link: Any = _RayLink.__new__(_RayLink)
    link._pending, link._ray = None, ray
    failed, end = link.taken()
    assert failed["say"] is Say.FAILED and "Expecting value" in failed["text"]
    assert end is None


def test_a_station_whose_end_is_told_twice_is_lost_once(desk: Make) -> None:
    one = desk("a b")
    one.probe()
    number, receive = one.trial(), one.stations.receive

    def doubled(links: Any, timeout_s: float) -> list[Any]:
        return [
            m
            for m in receive(links, timeout_s)
            for _ in range(2 if m[1] is None else 1)
        ]

    one.executor._receive = doubled
    one.stations.lose("a")
    assert one.ending(number).outcome is Outcome.OK
    assert one.at(number) == ["a", "b"]
    assert len([text for text in one.told if "lost" in text]) == 1


def test_a_job_that_runs_alone_does_not_wait_for_all_others(desk: Make) -> None:
    one = desk("a b", slots=2)
    one.probe()
    lost = one.trial()
    one.stations.lose("a")
    others = [one.trial() for _ in range(8)]
    one.ending(lost)
    before = [e.number for e in one.ended if e.number in others]
    assert len(before) <= 2, "only those that ran when it was put back"


@pytest.mark.parametrize("config", [ANY, PLAIN])
def test_what_takes_two_stations_down_is_its_outcome(
    desk: Make, config: CompileConfig
) -> None:
    one = desk("a b c")
    one.probe()
    number = one.trial(config)
    one.stations.lose("a")
    one.executor.wait(0.1)
    assert one.at(number) == ["a", "b"]
    one.stations.lose("b")
    ending = one.ending(number)
    assert ending.outcome is Outcome.CRASHED
    assert (
        ending.message == "it takes its machine down: 2 stations were lost while it ran"
    )
    assert not ending.doubts, "it is not tried a third time"
    assert one.ending(one.trial()).outcome is Outcome.OK, "the others go on"


def test_a_lost_station_is_replaced(desk: Make) -> None:
    one = desk("a")
    one.probe()
    number = one.trial()
    one.stations.lose("a", replaced=True)
    assert one.ending(number).outcome is Outcome.OK
    assert one.at(number) == ["a", "a"]
    assert one.at(-1) == ["a"], "the same machine as before"
    assert [e.number for e in one.ended] == [-1, number]
    assert [s.name for s in one.executor.stations] == ["a"]


def test_without_stations_the_run_ends_and_can_be_resumed(desk: Make) -> None:
    one = desk("a")
    one.probe()
    number = one.trial()
    one.stations.lose("a")
    with pytest.raises(RunError, match="no station is left") as error:
        one.ending(number)
    assert "--resume" in error.value.text()


def test_sets_of_a_race_go_round_the_stations(desk: Make) -> None:
    one = desk("a b")
    one.probe()
    found = []
    for _ in range(4):
        number = one.race()
        one.ending(number)
        found += one.at(number)
    assert found == ["a", "b", "a", "b"]


def test_those_that_take_turns_share_a_station(desk: Make) -> None:
    one = desk("a b", slots=3)
    one.probe()
    numbers = [one.race(takes_turns=True) for _ in range(3)]
    assert [one.at(n) for n in numbers] == [["a"]] * 3
    for number in numbers:
        one.ending(number)
    again = one.race(takes_turns=True)
    assert one.at(again) == ["b"]


def test_a_record_names_its_station(desk: Make) -> None:
    one = desk("a b")
    one.probe()
    assert one.ending(one.trial()).payload["sides"][0]["detail"] == {"station": "a"}
    assert one.ending(one.race()).payload["sides"][0]["detail"] == {"station": "a"}


def test_a_cancelled_job_ends_once_wherever_it_is(desk: Make) -> None:
    one = desk("a")
    one.probe()
    running, waiting = one.trial(), one.trial()
    for number in (waiting, running):
        one.executor.cancel(number)
        assert one.ending(number).outcome is Outcome.INTERRUPTED
    assert [e.number for e in one.ended] == [-1, waiting, running]


def test_caches_that_are_no_longer_needed_are_named_with_the_next_job(
    desk: Make,
) -> None:
    one = desk("a")
    one.probe()
    first, second = one.trial(), one.trial()
    one.ending(second)
    one.factory.drop_cache(first)
    third = one.trial()
    kept = [m["kept"] for _, m in one.stations.sent if m["do"] is Do.START][-1]
    assert sorted(kept) == [f"{second:04d}", f"{third:04d}"]


def test_a_whole_run_over_stations_is_a_run(target: Path) -> None:
    stations = ScriptedStations(["a", "b"], lambda name: FakeExecutor(script), slots=2)
    executor = ClusterExecutor(stations.links, stations.receive, stations.clock)
    result = tune(target, executor=executor, space=SPACE, clock=stations.clock)
    assert result.config["forward"].mode == "max-autotune"
    at = {r.detail["station"] for r in result.trials if r.race is not None}
    assert at == {"a", "b"}, "finalists are raced on more than one machine"
    assert not stations.alive


class Order(Listener):
    """In which order races begin and their sides end."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []

    def racing(
        self, phase: str, batch_size: int | None, sides: int, number: int
    ) -> None:
        self.words.append("begins")

    def ended(self, record: Record, left: int) -> None:
        self.words += ["ends"] if record.race else []


@pytest.mark.parametrize(("names", "at_once"), [("a b", 2), ("a", 1)])
def test_batch_sizes_are_raced_at_once_on_different_stations(
    target: Path, names: str, at_once: int
) -> None:
    stations = ScriptedStations(names.split(), lambda name: FakeExecutor(script))
    executor = ClusterExecutor(stations.links, stations.receive, stations.clock)
    order, space = Order(), autocompile.SearchSpace(batch_sizes=(4, 8))
    tune(target, executor=executor, space=space, clock=stations.clock, progress=order)
    begun = order.words.index("ends")
    assert order.words[:begun] == ["begins"] * at_once


def test_a_trial_that_takes_machines_down_is_no_value_to_the_sampler(
    target: Path,
) -> None:
    stations = ScriptedStations("abcd", lambda name: FakeExecutor(script))
    send = type(stations.links[0]).send

    def deadly(self: Any, kind: Do, **fields: Any) -> None:
        send(self, kind, **fields)
        if fields.get("job", {}).get("number") == 3:
            stations.lose(self.name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(stations.links[0]), "send", deadly)
        executor = ClusterExecutor(stations.links, stations.receive, stations.clock)
        progress = Listener()
        result = tune(
            target,
            executor=executor,
            space=SPACE,
            clock=stations.clock,
            progress=progress,
        )
    (dead,) = [
        r
        for r in result.trials
        if "machine down" in r.message and r.duplicate_of is None
    ]
    assert (dead.number, dead.outcome, dead.measurement) == (3, Outcome.CRASHED, None)
    assert sum("is put back" in text for text in progress.warnings) == 2
    (study,) = optuna.get_all_study_summaries(f"sqlite:///{result.run_dir}/study.db")
    trials = optuna.load_study(
        study_name=study.study_name, storage=f"sqlite:///{result.run_dir}/study.db"
    ).trials
    told = {t.user_attrs.get("number"): (t.state, t.value) for t in trials}
    assert told[3] == (optuna.trial.TrialState.PRUNED, None), "as every failure"
