"""The interval of a figure is as wide as recorded runs demand."""

from __future__ import annotations

import json
import math

from conftest import ROOT

from autocompile.estimate.intervals import Interval, between_runs

CALIBRATED = json.loads((ROOT / "studies/truth/calibrate.json").read_text("utf-8"))
EXACT = Interval(1.0, 1.0, 1.0)


def test_an_interval_is_as_wide_as_the_recorded_runs_demand() -> None:
    wide = math.log(between_runs(EXACT).high)
    assert math.isclose(wide, 1.96 * CALIBRATED["runs_apart"])


def test_it_held_the_truth_of_each_kind_as_often_as_is_said() -> None:
    for kind in CALIBRATED["kinds"].values():
        held, count = map(int, kind["held when its series is left out"].split(" of "))
        assert held / count >= CALIBRATED["goal"]


def test_an_order_is_surer_than_a_figure() -> None:
    found = Interval(1.05, 1.04, 1.06)
    assert between_runs(found).low < 1 < between_runs(found, only_order=True).low
