"""Who may measure on a host: the tokens, in every order of events."""

from __future__ import annotations

import random
from concurrent.futures import Future

import pytest

from autocompile.cluster.beside import Alike, together
from autocompile.cluster.hosts import Hosts, Orders
from autocompile.cluster.pipe import TokenKeeper
from autocompile.cluster.wire import Do, Say, decode
from autocompile.estimate.intervals import Interval


class House:
    """Stations that do what they are told some time later, and what must be true throughout."""

    def __init__(self, size: int = 1) -> None:
        self.hosts = Hosts()
        self.size = size
        self.told: dict[str, list[Do]] = {}
        self.hushed: set[str] = set()
        self.measuring: set[str] = set()
        self.asking: set[str] = set()
        self.in_step: set[str] = set()

    def take(self, orders: Orders) -> None:
        for station, what in orders:
            if what is Do.GRANTED and station in self.in_step:
                present = self.told.keys() & self.group(station)
                assert present <= self.asking | self.measuring, "one of them has not asked"
            if station in self.told:
                self.told[station].append(what)

    def join(self, station: str, in_step: bool = False) -> None:
        self.told[station] = []
        self.take(self.hosts.join(station, "host"))
        self.allow(station, in_step)

    def allow(self, station: str, in_step: bool = False) -> None:
        """Its group, all of which may be in step or are let go on."""
        group = self.group(station)
        self.in_step -= {*group}
        self.in_step |= {*group} if in_step else set()
        self.take(self.hosts.allow(group, in_step))

    def group(self, station: str) -> list[str]:
        first = int(station[1:]) // self.size * self.size
        return [f"s{number}" for number in range(first, first + self.size)]

    def ask(self, station: str) -> None:
        self.asking.add(station)
        self.take(self.hosts.ask(station))

    def hear(self, station: str) -> None:
        """A station does the next thing that it was told."""
        what = self.told[station].pop(0)
        if what is Do.HUSH:
            self.hushed.add(station)
            self.take(self.hosts.confirm(station))
        elif what is Do.FREE:
            self.hushed.discard(station)
        else:
            self.hushed.add(station)
            self.asking.discard(station)
            self.measuring.add(station)
            assert self.measuring <= {*self.group(station)}
            newcomers = {s for s, words in self.told.items() if Do.HUSH in words}
            assert set(self.told) - newcomers <= self.hushed, "somebody works beside a timing"

    def done(self, station: str) -> None:
        self.measuring.discard(station)
        self.take(self.hosts.done(station))

    def settle(self) -> None:
        """All do what they are told, until nobody is told anything."""
        while busy := [s for s, words in self.told.items() if words] or self.measuring:
            for station in sorted(busy):
                (self.hear if self.told[station] else self.done)(station)

    def leave(self, station: str) -> None:
        del self.told[station]
        for group in (self.hushed, self.measuring, self.asking, self.in_step):
            group.discard(station)
        self.take(self.hosts.leave(station))


def test_before_one_measures_all_others_of_its_host_have_stopped() -> None:
    hosts = Hosts()
    for name, host in (("a", "one"), ("b", "one"), ("c", "two")):
        hosts.join(name, host)
    assert hosts.ask("a") == [("b", Do.HUSH)], "the other host is not concerned"
    assert hosts.ask("b") == []
    assert hosts.confirm("b") == [("a", Do.GRANTED)]
    assert hosts.done("a") == [("b", Do.GRANTED)], "first come, first served"
    assert hosts.done("b") == [("a", Do.FREE), ("b", Do.FREE)]
    assert hosts.ask("c") == [("c", Do.GRANTED)], "alone on its host it asks nobody"


def test_a_station_that_dies_holds_nobody_up() -> None:
    hosts = Hosts()
    for name in "abc":
        hosts.join(name, "host")
    hosts.ask("a")
    hosts.ask("b")
    hosts.confirm("b")
    assert hosts.leave("c") == [("a", Do.GRANTED)], "it cannot confirm any more"
    assert hosts.leave("a") == [("b", Do.GRANTED)], "nor give its token back"


def test_who_asks_before_it_is_heard_that_it_has_joined_is_not_forgotten() -> None:
    hosts = Hosts()
    assert hosts.ask("a") == []
    assert hosts.join("a", "host") == [("a", Do.GRANTED)]
    hosts.ask("b")
    hosts.leave("b")
    assert hosts.join("b", "host") == [("b", Do.HUSH)], "another of that name has not asked"


@pytest.mark.parametrize("size", [1, 2, 3])
def test_whatever_happens_nobody_works_beside_a_timing_and_nobody_is_forgotten(size: int) -> None:
    for seed in range(200):
        rng, house = random.Random(seed), House(size)
        for number in range(4):
            house.join(f"s{number}", rng.random() < 0.5)
        for number in range(4, 80):
            busy = [s for s, words in house.told.items() if words]
            free = sorted(set(house.told) - house.asking - house.measuring - house.hushed)
            action = rng.choice([*["hear"] * 3, "ask", "done", "leave", "join", "allow"])
            if action == "hear" and busy:
                house.hear(rng.choice(busy))
            elif action == "ask" and free:
                house.ask(rng.choice(free))
            elif action == "done" and house.measuring:
                house.done(rng.choice(sorted(house.measuring)))
            elif action == "leave" and len(house.told) > 2 and number % 5 == 0:
                house.leave(rng.choice(sorted(house.told)))
            elif action == "join" and len(house.told) < 4:
                house.join(f"s{number}", rng.random() < 0.5)
            elif action == "allow":
                house.allow(rng.choice(sorted(house.told)), rng.random() < 0.5)
        house.settle()
        for station in sorted(house.in_step):  # for each other: nothing else happens any more
            house.allow(station)
        house.settle()
        assert not house.asking, seed
        assert not house.hushed, seed


def test_those_that_may_measure_at_once_do_so_beside_no_other() -> None:
    hosts = Hosts()
    for name in "abc":
        hosts.join(name, "host")
    hosts.allow("ab")
    assert hosts.ask("a") == [(name, Do.HUSH) for name in "abc"]
    for name in "abc":
        hosts.ask(name)
    assert hosts.confirm("a") + hosts.confirm("b") == []
    assert hosts.confirm("c") == [("a", Do.GRANTED), ("b", Do.GRANTED)]
    assert hosts.done("a") == [], "another driver's, or of another kind: not beside b"
    assert hosts.done("b") == [("c", Do.GRANTED)]


class Actor:
    """In place of a station's actor: keeps what it was sent, until it is dead."""

    def __init__(self) -> None:
        self.sent: list[Do] = []
        self.end = Future[None]()
        self.last = self.send = self

    def options(self, concurrency_group: str) -> Actor:
        return self

    def remote(self, line: str | None = None) -> Actor:
        self.sent += [decode(line)["do"]] if line else []
        return self

    def future(self) -> Future[None]:
        return self.end


def test_a_station_whose_actor_dies_holds_nobody_up() -> None:
    keeper, actors = TokenKeeper("waiting"), {name: Actor() for name in "abc"}
    for name, actor in actors.items():
        keeper.join(name, "host", actor)
    for name in "ab":
        keeper.hear(name, Say.ASK.value)
    keeper.hear("b", Say.HUSHED.value)
    actors["c"].end.set_exception(RuntimeError("its driver was killed"))
    assert actors["a"].sent == [Do.GRANTED], "it cannot confirm any more"
    actors["a"].end.set_result(None)
    assert actors["b"].sent == [Do.HUSH, Do.GRANTED], "nor give its token back"
    assert actors["a"].sent[-1] is Do.CLOSE, "if it lives after all it must not measure"


def around(value: float, half: float, begin: float = 0.0) -> Alike:
    ratio = Interval(value, value * (1 - half), value * (1 + half))
    return Alike(ratio, begin, begin + 3.0)


def test_several_measure_at_once_only_where_nothing_but_noise_is_seen() -> None:
    assert together([around(1.0, 0.005), around(1.002, 0.004)])
    assert not together([around(1.0, 0.005), around(1.03, 0.005)]), "it is biased"
    assert not together([around(1.0, 0.005), around(1.0, 0.04)]), "it is noisy"
    assert not together([])


@pytest.mark.parametrize(("begin", "may"), [(1.0, True), (2.0, False), (4.0, False)])
def test_what_was_timed_one_after_another_shows_nothing(begin: float, may: bool) -> None:
    assert together([around(1.0, 0.005), around(1.0, 0.005, begin)]) is may


def test_those_in_step_wait_until_all_have_asked_and_others_go_on_meanwhile() -> None:
    hosts = Hosts()
    for name in "abc":
        hosts.join(name, "host")
    hosts.allow("ab", in_step=True)
    assert hosts.ask("a") == [], "it would stop b before b can ask"
    assert hosts.ask("c") == [("a", Do.HUSH), ("b", Do.HUSH)]
    hosts.confirm("a")
    assert hosts.confirm("b") == [("c", Do.GRANTED)]
    assert hosts.done("c") == [(name, Do.FREE) for name in "abc"], "b goes on, and comes to ask"
    assert hosts.ask("b") == [(name, Do.HUSH) for name in "abc"]
    for name in "abc":
        told = hosts.confirm(name)
    assert told == [("a", Do.GRANTED), ("b", Do.GRANTED)]


@pytest.mark.parametrize("how", ["dies", "is let go"])
def test_nobody_waits_in_step_for_one_that_does_not_come(how: str) -> None:
    hosts = Hosts()
    for name in "ab":
        hosts.join(name, "host")
    hosts.allow("ab", in_step=True)
    assert hosts.ask("a") == []
    told = hosts.leave("b") if how == "dies" else hosts.allow("ab")
    assert told == [("a", Do.HUSH)] + ([("b", Do.HUSH)] if how == "is let go" else [])
