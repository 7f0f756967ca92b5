"""Where jobs run, and what becomes of them when stations are lost: with scripted stations."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest
from fakes import FakeExecutor, ScriptedStations, failed, measured, probed
from scripts import SPACE, Listener, script

import autocompile
from autocompile.cluster.beside import share_hosts
from autocompile.cluster.executor import ClusterExecutor
from autocompile.cluster.links import _RayLink
from autocompile.cluster.stations import Link
from autocompile.cluster.wire import Do
from autocompile.errors import RunError, UsageError
from autocompile.execute.executor import Ended, Ending, Event, Stepped, Told
from autocompile.execute.job import JobFactory
from autocompile.protocol.requests import Header, ProbeRequest, RaceRequest, Side, TrialRequest
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
            self.factory.probe_job(ProbeRequest(header=self.factory.header, batch_size=4), False)
        )
        return self.ending(-1)

    def trial(self, config: CompileConfig = ANY, fresh: bool = False) -> int:
        number = self.factory.next_number()
        request = TrialRequest(
            header=self.factory.header,
            number=number,
            phase="forward",
            config=config,
            batch_size=4,
        )
        self.executor.start(self.factory.job(request, fresh=fresh))
        return number

    def race(self, takes_turns: bool = False) -> int:
        number, config = self.factory.next_number(), CompileConfig("inductor")
        request = RaceRequest(
            header=self.factory.header,
            number=number,
            phase="forward",
            batch_size=4,
            sides=(Side(0, config, str(self.factory.cache_of(0)), True),),
            block_s=0.02,
            rounds=8,
            max_s=1.0,
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
        return [n for n, m in sent if m["do"] is Do.START and m["job"]["number"] == number]


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


@pytest.mark.parametrize(("key", "value"), [("driver", "535.1"), ("power_limit_w", 300.0)])
def test_who_has_another_driver_or_less_power_is_left_out(desk: Make, key: str, value: Any) -> None:
    usual = {**probed().payload["environment"], "driver": "570.86", "power_limit_w": 700.0}
    one = desk(
        "a b", {"a": probed(environment=usual), "b": probed(environment=usual | {key: value})}
    )
    one.probe()
    assert [s.name for s in one.executor.stations] == ["a"]
    assert f"{key} is {value}, not {usual[key]}" in one.told[0]


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


def timing(desk: Make, names: str, **slow: tuple[float, float]) -> Desk:
    """Stations, some of which need so many times as long in eager mode and compiled."""

    def make(name: str) -> FakeExecutor:
        eager, compiled = slow.get(name.replace("+", "_again"), (1.0, 1.0))
        ending = measured(2.0 * eager / compiled, eager_s=1e-3 * eager)
        return FakeExecutor(lambda _: ending)

    one = desk(names, make=make, slots=2)
    one.probe()
    return one


def go_on(one: Desk) -> None:
    """What the executor does besides needs no job of ours, but some to be waited for."""
    for _ in range(4):
        assert one.ending(one.trial()).outcome is Outcome.OK


@pytest.mark.parametrize(
    ("who", "slow", "told"),
    [
        ("b", (1.0, 2.5), "plain torch.compile() takes 2.50 times as long there as on a"),
        ("a", (2.5, 2.5), "eager mode takes 2.50 times as long there as on b"),
        ("b", (1.5, 1.5), ""),
    ],
)
@pytest.mark.parametrize("names", ["a b", "a b c"])
def test_all_stations_time_plain_compile_and_who_is_much_slower_is_left_out(
    desk: Make, names: str, who: str, slow: tuple[float, float], told: str
) -> None:
    one = timing(desk, names, **{who: slow})
    number = one.trial(PLAIN)
    assert one.ending(number).payload["detail"] == {"station": "a"}, "nobody waits for the others"
    go_on(one)
    assert sorted(one.at(number)) == names.split()
    assert one.told == ([f"{who}: left out: {told}"] if told else [])
    assert len([e for e in one.ended if e.number == number]) == 1
    second = one.trial(PLAIN)
    assert one.ending(second).outcome is Outcome.OK
    assert len(one.at(second)) == 1, "once is enough"


def test_each_of_two_is_slower_at_something_and_one_stays(desk: Make) -> None:
    one = timing(desk, "a b", a=(2.5, 1.0), b=(1.0, 2.5))
    one.ending(one.trial(PLAIN))
    go_on(one)
    assert [s.name for s in one.executor.stations] == ["a"]


def test_a_station_that_cannot_do_what_another_did_is_left_out(desk: Make) -> None:
    crash = failed("crashed", "compile", "SIGSEGV")

    def make(name: str) -> FakeExecutor:
        return FakeExecutor(lambda r: crash if name == "b" and is_plain(r) else measured(2.0))

    def is_plain(request: dict[str, Any]) -> bool:
        return bool(request["config"] == PLAIN.to_dict())

    one = desk("a b", make=make)
    one.probe()
    number = one.trial(PLAIN)
    assert one.ending(number).outcome is Outcome.OK
    go_on(one)
    what = "plain torch.compile(), which works on a, ended with crashed (SIGSEGV)"
    assert one.told == [f"b: left out: {what}"]


def test_a_replacement_is_compared_too(desk: Make) -> None:
    one = timing(desk, "a b", b_again=(3.0, 3.0))
    one.ending(one.trial(PLAIN))
    go_on(one)
    one.stations.lose("b", replaced=True)
    go_on(one)
    assert one.told[-1] == "b+: left out: eager mode takes 3.00 times as long there as on a"


def test_where_the_last_station_is_left_out_the_run_ends(desk: Make) -> None:
    one = desk("a", {"a+": failed("crashed", "import", "no GPU")})
    one.probe()
    number = one.trial()
    one.stations.lose("a", replaced=True)
    with pytest.raises(RunError, match="no station is left"):
        one.ending(number)


def test_times_that_make_no_sense_are_not_compared(desk: Make) -> None:
    wrong = {"eager_s": ["fast"], "compiled_s": []}
    forged = dataclasses.replace(measured(2.0), payload={"measurement": wrong})
    endings = {"a": forged, "b": measured(1.0)}
    one = desk("a b", make=lambda name: FakeExecutor(lambda _: endings[name]))
    one.probe()
    assert one.ending(one.trial(PLAIN)).payload["measurement"] == wrong
    assert not one.told


def test_what_a_station_ran_that_is_left_out_runs_elsewhere(desk: Make) -> None:
    one = timing(desk, "a b", b=(1.0, 2.5))
    numbers = [one.trial(PLAIN), *(one.trial() for _ in range(6))]
    assert all(one.ending(number).outcome is Outcome.OK for number in numbers)
    assert one.told and {n for number in numbers[-2:] for n in one.at(number)} >= {"a"}


def test_versions_that_differ_are_one_paragraph(desk: Make) -> None:
    with pytest.raises(UsageError) as error:
        desk("a b c", facts={"c": {"torch": "2.11.0"}})
    assert error.value.text() == (
        "the stations run different versions of torch, so their trials do not compare\n"
        "  2.13.0 on a, b\n"
        "  2.11.0 on c\n"
        "  try: the same image on every node"
    )
    with pytest.raises(UsageError, match="torch is not installed on a, b"):
        desk("a b", facts={name: {"torch": ""} for name in "ab"})


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
    assert order == [-1, second, first, third], "one after another once what ran there had ended"
    assert f"a: lost (it does not answer); trial {first}, {third} is put back" in one.told


def test_why_an_actor_has_died_is_told(desk: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    cause = "The actor died unexpectedly.\n\tpid: 3\nThe actor is dead because its node has died."

    def died(pending: Any) -> None:
        raise ray.exceptions.ActorUnavailableError(cause, None)

    monkeypatch.setattr(ray, "get", died)
    link: Any = _RayLink.__new__(_RayLink)
    link._pending = None
    one = desk("a b")
    one.probe()
    a = one.executor.stations[0].link
    monkeypatch.setattr(
        one.executor._stations, "_receive", lambda *_: [(a, m) for m in link.taken()]
    )
    number = one.trial()
    one.events += one.executor.wait(1.0)
    (told,) = one.told
    assert told.startswith("a: lost (") and "because its node has died" in told
    assert told.endswith(f"; trial {number} is put back")


def test_a_station_whose_end_is_told_twice_is_lost_once(desk: Make) -> None:
    one = desk("a b")
    one.probe()
    number, receive = one.trial(), one.stations.receive

    def doubled(links: Any, timeout_s: float) -> list[Any]:
        return [m for m in receive(links, timeout_s) for _ in range(2 if m[1] is None else 1)]

    one.executor._stations._receive = doubled
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
def test_what_takes_two_stations_down_is_its_outcome(desk: Make, config: CompileConfig) -> None:
    one = desk("a b c")
    one.probe()
    number = one.trial(config)
    one.stations.lose("a")
    one.executor.wait(0.1)
    assert one.at(number) == ["a", "b"]
    one.stations.lose("b")
    ending = one.ending(number)
    assert ending.outcome is Outcome.CRASHED
    assert ending.message == "it takes its machine down: 2 stations were lost while it ran"
    assert not ending.doubts, "it is not tried a third time"
    assert one.ending(one.trial()).outcome is Outcome.OK, "the others go on"


def test_a_lost_station_is_replaced_and_probed_before_it_works(desk: Make) -> None:
    one = desk("a")
    one.probe()
    number = one.trial()
    one.stations.lose("a", replaced=True)
    assert one.ending(number).outcome is Outcome.OK
    assert one.at(number) == ["a", "a+"]
    assert one.at(-1) == ["a", "a+"]
    assert [e.number for e in one.ended] == [-1, number], "its probe is nobody else's business"


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


def test_a_step_names_its_station(desk: Make) -> None:
    one = desk("a b")
    one.probe()
    numbers = [one.trial(), one.trial()]
    one.ending(numbers[1])
    found = {e.number: e.station for e in one.events if isinstance(e, Stepped)}
    assert found == dict(zip(numbers, "ab", strict=True))


def test_a_record_names_its_station(desk: Make) -> None:
    one = desk("a b")
    one.probe()
    assert one.ending(one.trial()).payload["detail"] == {"station": "a"}
    assert one.ending(one.race()).payload["sides"][0]["detail"] == {"station": "a"}


def test_a_cancelled_job_ends_once_wherever_it_is(desk: Make) -> None:
    one = desk("a")
    one.probe()
    running, waiting = one.trial(), one.trial()
    for number in (waiting, running):
        one.executor.cancel(number)
        assert one.ending(number).outcome is Outcome.INTERRUPTED
    assert [e.number for e in one.ended] == [-1, waiting, running]


def test_caches_that_are_no_longer_needed_are_named_with_the_next_job(desk: Make) -> None:
    one = desk("a")
    one.probe()
    first, second = one.trial(), one.trial()
    one.ending(second)
    one.factory.drop_cache(first)
    third = one.trial()
    kept = [m["kept"] for _, m in one.stations.sent if m["do"] is Do.START][-1]
    assert sorted(kept) == [f"{second:04d}", f"{third:04d}"]


@pytest.mark.parametrize(
    ("noise", "apart_s", "may"), [(0.002, 0.0, True), (0.2, 0.0, False), (0.002, 5.0, False)]
)
def test_gpus_of_a_host_measure_at_once_where_eager_shows_only_noise(
    noise: float, apart_s: float, may: bool
) -> None:
    allowed: list[tuple[list[str], bool]] = []
    begins = itertools.count(0.0, apart_s)

    def allow(links: Sequence[Link], in_step: bool) -> None:
        allowed.append(([link.name for link in links], in_step))

    def measure(request: dict[str, Any]) -> Ending:
        begin = next(begins)
        ending = measured(1.0, noise=noise, rounds=100)
        return dataclasses.replace(ending, spans=(("measure", begin, begin + 3.0),))

    stations = ScriptedStations(["g/0", "h/0", "h/1"], lambda name: FakeExecutor(measure))
    executor = ClusterExecutor(stations.links, stations.receive, stations.clock)
    found = share_hosts(executor, allow)
    assert found == {"h": may}, "a station alone on its host needs no look"
    in_step, let_go = (["h/0", "h/1"], True), (["h/0", "h/1"], False)
    apart = [] if may else [(["h/0"], False), (["h/1"], False)]
    assert allowed == [in_step, let_go, let_go, *apart], "the end of g/0 is no matter of theirs"


def test_a_station_that_is_lost_while_hosts_are_compared_is_told() -> None:
    def measure(request: dict[str, Any]) -> Ending:
        if "h/1" in stations.alive:
            stations.lose("h/1")
        return measured(1.0)

    stations = ScriptedStations(["h/0", "h/1"], lambda name: FakeExecutor(measure))
    executor = ClusterExecutor(stations.links, stations.receive, stations.clock)
    assert share_hosts(executor, lambda links, in_step: None) == {"h": False}
    told = [event.text for event in executor.wait(0.0) if isinstance(event, Told)]
    assert any(text.startswith("h/1: lost") for text in told)


def test_a_whole_run_over_stations_is_a_run(target: Path) -> None:
    stations = ScriptedStations(["a", "b"], lambda name: FakeExecutor(script), slots=2)
    executor = ClusterExecutor(stations.links, stations.receive, stations.clock)
    result = autocompile.tune(target, executor=executor, space=SPACE, clock=stations.clock)
    assert result.config["forward"].mode == "max-autotune"
    at = {r.detail["station"] for r in result.trials if r.race is not None}
    assert at == {"a", "b"}, "finalists are raced on more than one machine"
    assert not stations.alive


class Order(Listener):
    """In which order races begin and their sides end."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []

    def racing(self, phase: str, batch_size: int | None, sides: int, number: int) -> None:
        self.words.append("begins")

    def ended(self, record: Record, left: int) -> None:
        self.words += ["ends"] if record.race else []


@pytest.mark.parametrize(("names", "at_once"), [("a b", 2), ("a/0 a/1", 1), ("a", 1)])
def test_batch_sizes_are_raced_at_once_on_different_hosts(
    target: Path, names: str, at_once: int
) -> None:
    stations = ScriptedStations(names.split(), lambda name: FakeExecutor(script))
    executor = ClusterExecutor(stations.links, stations.receive, stations.clock)
    order, space = Order(), autocompile.SearchSpace(batch_sizes=(4, 8))
    autocompile.tune(target, executor=executor, space=space, clock=stations.clock, progress=order)
    begun = order.words.index("ends")
    assert order.words[:begun] == ["begins"] * at_once


def test_a_trial_that_takes_machines_down_is_no_value_to_the_sampler(target: Path) -> None:
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
        result = autocompile.tune(
            target, executor=executor, space=SPACE, clock=stations.clock, progress=progress
        )
    (dead,) = [r for r in result.trials if "takes its machine down" in r.message]
    assert (dead.number, dead.outcome, dead.measurement) == (3, Outcome.CRASHED, None)
    assert sum("is put back" in text for text in progress.warnings) == 2
    (study,) = optuna.get_all_study_summaries(f"sqlite:///{result.run_dir}/study.db")
    trials = optuna.load_study(
        study_name=study.study_name, storage=f"sqlite:///{result.run_dir}/study.db"
    ).trials
    told = {t.user_attrs.get("number"): (t.state, t.value) for t in trials}
    assert told[3] == (optuna.trial.TrialState.PRUNED, None), "as every failure"
