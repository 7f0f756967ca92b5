"""The order in which settings are tried."""

from __future__ import annotations

import dataclasses

from autocompile.config import EAGER, CompileConfig
from autocompile.record import Outcome, Record, Step
from autocompile.search.sampler import Effects, fingerprint, next_setting, resets
from autocompile.search.space import Setting, Space

A, B = "reduce-overhead", "max-autotune"


def failure(number: int, config: CompileConfig, message: str) -> Record:
    return Record(number, "forward", config, 4, Outcome.COMPILE_ERROR, Step.COMPILE, message)


def test_numbers_addresses_and_paths_do_not_make_another_failure() -> None:
    one = failure(1, CompileConfig(), "cannot load /tmp/ab12/c.so at 0x7f12: error 3")
    two = failure(2, CompileConfig(mode=A), "cannot load /tmp/cd34/c.so at 0x7e00: error 14")
    assert fingerprint(one) == fingerprint(two)
    other = failure(3, CompileConfig(), "no kernel for this size")
    assert fingerprint(one) != fingerprint(other)
    crashed = dataclasses.replace(one, outcome=Outcome.CRASHED)
    assert fingerprint(one) != fingerprint(crashed)


def test_what_failures_of_one_kind_have_in_common_comes_last() -> None:
    """Two modes fail alike with channels_last; it is the third mode's turn to say so too."""
    effects = Effects()
    for number, mode in enumerate((A, B)):
        config = CompileConfig(mode=mode, memory_format="channels_last")
        effects.add(failure(number, config, f"no kernel {number}"))
        plain = CompileConfig(mode=mode)
        effects.add(failure(10 + number, plain, f"something else in {mode}"))
    suspect = Setting(CompileConfig(mode="lite", memory_format="channels_last"), 4)
    other = Setting(CompileConfig(mode="lite"), 4)
    unseen = Effects()
    assert unseen.score(suspect) == unseen.score(other)
    assert effects.score(suspect) < 0.5 * effects.score(other)


def test_a_leader_is_asked_first_whether_all_of_it_matters() -> None:
    leader = Setting(CompileConfig(mode=A, memory_format="channels_last", dynamic=True), 4)
    simpler = resets(leader)
    assert [s.config for s in simpler] == [
        CompileConfig(memory_format="channels_last", dynamic=True),
        CompileConfig(mode=A, memory_format="channels_last"),
        CompileConfig(mode=A, dynamic=True),
    ]
    assert resets(Setting(EAGER, 4)) == []
    others = [Setting(CompileConfig(mode="lite"), 4), Setting(CompileConfig(mode=B), 4)]
    space = Space("forward", (leader, *others, *simpler), {})
    left = [*others, *simpler]
    assert next_setting(space, left, [], Effects()) not in simpler
    for _ in simpler:
        found = next_setting(space, left, [], Effects(), [leader])
        assert found in simpler
        left.remove(found)
    assert next_setting(space, left, [], Effects(), [leader]) in others


def test_each_backend_of_each_environment_has_an_early_turn() -> None:
    """Else one with many settings keeps the others waiting until the budget is spent."""
    plain = [Setting(config, 4) for config in (EAGER, CompileConfig())]
    deep = [Setting(CompileConfig(dynamic=dynamic), 4) for dynamic in (True, False)]
    baked = CompileConfig("onnxrt", options={"weights": "baked"})
    new = [
        Setting(dataclasses.replace(baked, threads=1), 4),
        Setting(baked, 4),
        Setting(CompileConfig("onnxrt"), 4),
        Setting(CompileConfig("ipex", environment="other"), 4),
        Setting(dataclasses.replace(EAGER, optimizer="fused", threads=1), 4),
        Setting(dataclasses.replace(EAGER, optimizer="fused"), 4),
    ]
    space = Space("forward", (*plain, *deep, *new), {})
    effects = Effects()
    for setting in plain:
        effects.add(Record(0, "forward", setting.config, 4, Outcome.OK, Step.EXIT, wall_s=0.1))
    left = [*deep, *new]
    assert effects.score(deep[0]) > effects.score(new[2])  # what is quick, and known to work
    for expected in (new[2], new[3], new[5]):  # the plainest of each
        found = next_setting(space, left, [], effects)
        assert found == expected
        left.remove(found)
    assert next_setting(space, left, [], effects) == deep[0]  # and then by promise
