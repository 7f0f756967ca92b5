"""Who may measure on a host: the tokens, in every order of events."""

from __future__ import annotations

import random

import pytest

from autocompile.cluster.hosts import Hosts, Orders, together
from autocompile.cluster.wire import Do
from autocompile.estimate.intervals import Interval


class House:
    """Stations that do what they are told some time later, and what must be true throughout."""

    def __init__(self, tokens: int = 1) -> None:
        self.hosts = Hosts()
        self.hosts.allow("host", tokens)
        self.tokens = tokens
        self.told: dict[str, list[Do]] = {}
        self.hushed: set[str] = set()
        self.measuring: set[str] = set()
        self.asking: set[str] = set()

    def take(self, orders: Orders) -> None:
        for station, what in orders:
            if station in self.told:
                self.told[station].append(what)

    def join(self, station: str) -> None:
        self.told[station] = []
        self.take(self.hosts.join(station, "host"))

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
            assert len(self.measuring) <= self.tokens
            newcomers = {s for s, words in self.told.items() if Do.HUSH in words}
            assert set(self.told) - newcomers <= self.hushed, "somebody works beside a timing"

    def done(self, station: str) -> None:
        self.measuring.discard(station)
        self.take(self.hosts.done(station))

    def leave(self, station: str) -> None:
        del self.told[station]
        for group in (self.hushed, self.measuring, self.asking):
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


@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_whatever_happens_nobody_works_beside_a_timing_and_nobody_is_forgotten(tokens: int) -> None:
    for seed in range(200):
        rng, house = random.Random(seed), House(tokens)
        for number in range(4):
            house.join(f"s{number}")
        for number in range(4, 80):
            busy = [s for s, words in house.told.items() if words]
            free = sorted(set(house.told) - house.asking - house.measuring - house.hushed)
            action = rng.choice(["hear", "hear", "hear", "ask", "done", "leave", "join"])
            if action == "hear" and busy:
                house.hear(rng.choice(busy))
            elif action == "ask" and free:
                house.ask(rng.choice(free))
            elif action == "done" and house.measuring:
                house.done(rng.choice(sorted(house.measuring)))
            elif action == "leave" and len(house.told) > 2 and number % 5 == 0:
                house.leave(rng.choice(sorted(house.told)))
            elif action == "join" and len(house.told) < 4:
                house.join(f"s{number}")
        for _ in range(100):
            for station in [s for s, words in house.told.items() if words]:
                house.hear(station)
            for station in sorted(house.measuring):
                house.done(station)
        assert not house.asking, seed
        assert not house.hushed, seed


def around(value: float, half: float) -> Interval:
    return Interval(value, value * (1 - half), value * (1 + half))


def test_several_measure_at_once_only_where_nothing_but_noise_is_seen() -> None:
    quiet = [around(1.0, 0.005), around(1.002, 0.004)]
    assert together(quiet, quiet) == 2
    assert together(quiet, [around(1.0, 0.005), around(1.03, 0.005)]) == 1, "it is biased"
    assert together(quiet, [around(1.0, 0.005), around(1.0, 0.04)]) == 1, "it is noisier"
    noisy = [around(1.0, 0.03), around(1.0, 0.03)]
    assert together(noisy, [around(1.0, 0.04), around(1.0, 0.03)]) == 2, "no noisier than alone"
    assert together([], []) == 1
