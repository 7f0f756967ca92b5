"""The list of settings: what is asked for, offered and sensible, and why the rest is left out."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from autocompile.errors import UsageError
from autocompile.protocol.requests import ProbeResult
from autocompile.request import Request
from autocompile.settings.backends import BACKENDS
from autocompile.settings.config import EAGER, CompileConfig, Setting, choices
from autocompile.settings.dimensions import DIMENSIONS, Place, why_not
from autocompile.settings.searchspace import SearchSpace
from autocompile.space.space import Space, build_space, demand_offered, sizes_of

OFFERED = ProbeResult(
    backends={"inductor": "", "onnxrt": "", "cudagraphs": "no CUDA device"},
    all_backends=["aot_eager", "cudagraphs", "inductor", "onnxrt"],
    modes={
        "default": "default",
        "reduce-overhead": "default",
        "max-autotune": "max-autotune",
    },
)
CNN = Place("forward", "cpu", threads=4, has_convolutions=True)
BLOCKS = dataclasses.replace(CNN, regions="4 Block")
LENGTHS = dataclasses.replace(CNN, kinds=12)
ADAM = Place("optimizer_step", "cpu", optimizers=("fused", "tensor_lr"))


def space(place: Place = CNN, **asked: Any) -> Space:
    return build_space(SearchSpace(**asked), OFFERED, place, (1,))


def configs(found: Space) -> set[CompileConfig]:
    return {s.config for s in found.settings}


def test_the_baselines_are_always_there() -> None:
    for place in (CNN, ADAM):
        found = [
            s.config for s in space(place, memory_format=("channels_last",)).settings
        ]
        assert found[:2] == [EAGER, CompileConfig()]


def test_eager_is_a_backend_like_any_other() -> None:
    assert CompileConfig("eager", memory_format="channels_last") in configs(space())
    eager = {c.optimizer for c in configs(space(ADAM)) if c.is_eager}
    assert eager == {"default", "fused", "tensor_lr"}


def test_a_backend_that_bakes_weights_has_two_variants() -> None:
    ours = {c.options for c in configs(space()) if c.backend == "onnxrt"}
    assert ours == {(), (("weights", "baked"),)}


def test_weights_are_frozen_by_every_backend_that_inductor_compiles_for() -> None:
    place = Place("forward", "cpu", threads=2)
    can = {b for b in BACKENDS if not why_not(CompileConfig(b, freezing=True), place)}
    assert can == {"inductor", "zentorch"}
    reasons = {
        why_not(CompileConfig(b, freezing=True), place)
        for b in BACKENDS
        if b not in can
    }
    assert reasons == {"only Inductor freezes weights"}


def test_updates_of_a_learner_freeze_nothing_and_are_tried_with_its_optimizers() -> (
    None
):
    found = space(Place("learner_update", "cpu", threads=2, optimizers=("fused",)))
    assert {c.optimizer for c in configs(found)} == {"default", "fused"}
    assert not any(c.freezing for c in configs(found))


def test_updates_have_the_batch_size_of_the_configuration_unless_they_are_asked_for_alone() -> (
    None
):
    target = {"own_batch_size": {"learner_update": 128, "forward_exploration": 16}}
    few = SearchSpace(batch_sizes=(1, 4))
    for phases, sizes in ((None, [128]), (("learner_update",), [1, 4])):
        request = Request("ppo.py", phases=phases, space=few)
        assert sizes_of("learner_update", request, target) == sizes
        assert sizes_of("forward_exploration", request, target) == [1, 4]
    assert sizes_of("learner_update", Request("ppo.py"), target) == [128]


def test_what_cannot_work_is_left_out_with_its_reason() -> None:
    found = space(ADAM)
    assert not any(c.backend == "onnxrt" for c in configs(found))
    assert "onnxrt computes no gradients" in found.dropped
    plain = space(Place("forward", "cpu"), memory_format=("default", "channels_last"))
    assert "the model has no convolutions" in plain.dropped
    assert configs(plain) == configs(space(Place("forward", "cpu")))


def test_weights_of_a_model_with_a_cache_of_its_own_are_not_frozen() -> None:
    def frozen(**more: bool) -> set[bool]:
        place = Place("forward", "cpu", **more)  # type: ignore[arg-type]
        return {c.freezing for c in configs(space(place, freezing=(False, True)))}

    assert frozen() == {False, True}
    assert frozen(writes_buffers=True) == {False}


def test_options_of_convolutions_are_for_models_that_have_some() -> None:
    names = [
        "triton.cudagraphs",
        "conv_1x1_as_mm",
        "layout_optimization",
        "combo_kernels",
    ]
    offered = ProbeResult(
        backends={"inductor": ""}, modes={"default": "default"}, options=names
    )

    def tried(place: Place) -> set[str]:
        found = build_space(SearchSpace(), offered, place, (1,))
        return {name for c in configs(found) for name, _ in c.options}

    assert tried(Place("forward", "cuda", has_convolutions=True)) == set(names)
    assert tried(Place("forward", "cuda")) == {"triton.cudagraphs", "combo_kernels"}
    steps = Place("optimizer_step", "cuda", has_convolutions=True)
    assert tried(steps) == {"triton.cudagraphs", "combo_kernels"}


def test_a_precision_of_float32_is_not_tried_under_autocast() -> None:
    tried = configs(space(precision=("default", "high"), autocast=("none", "bfloat16")))
    assert {(c.precision, c.autocast) for c in tried} == {
        ("default", "none"), ("high", "none"), ("default", "bfloat16")
    }  # fmt: skip
    for asked in (("high",), ("high", "medium")):
        only = configs(space(precision=asked, autocast=("bfloat16",)))
        assert {(c.precision, c.autocast) for c in only - {EAGER, CompileConfig()}} == {
            ("high", "bfloat16")
        }


@pytest.mark.parametrize(
    "config",
    [
        CompileConfig(mode="reduce-overhead", scope="regional"),
        CompileConfig(options={"triton.cudagraphs": True}, scope="regional"),
        CompileConfig("cudagraphs", scope="regional"),
    ],
    ids=CompileConfig.label,
)
def test_blocks_by_themselves_have_no_cuda_graphs(config: CompileConfig) -> None:
    place = Place("forward", "cuda", regions="4 Block")
    assert "a block overwrites" in why_not(config, place)
    assert not why_not(dataclasses.replace(config, scope="model"), place)


def test_more_shapes_than_torch_makes_programs_for_are_tried_static_with_a_limit() -> (
    None
):
    for kinds, limits in ((1, set()), (8, {None}), (12, {16}), (40, {64})):
        every = configs(space(dataclasses.replace(CNN, kinds=kinds)))
        assert {c.recompile_limit for c in every if c.dynamic is False} == limits
        assert {c.recompile_limit for c in every if c.dynamic is not False} == {None}


def test_what_changes_numbers_or_drops_checks_is_tried_only_by_name() -> None:
    found = space(precision=("default", "high"))
    assert {c.precision for c in configs(found)} == {"default", "high"}
    assert not [reason for reason in found.dropped if reason.startswith("--precision")]
    values = choices(space(BLOCKS).settings)
    assert {d.name for d in DIMENSIONS if d.is_listed and len(values[d.name]) > 1} == {
        "fullgraph", "memory_format", "freezing", "scope", "threads",
    }  # fmt: skip


def test_a_flag_decides_over_what_is_tried_by_itself() -> None:
    found = space(memory_format=("channels_last",), freezing=(True,))
    ours = configs(found) - {EAGER, CompileConfig()}
    assert {c.memory_format for c in ours if c.backend == "inductor"} == {
        "channels_last"
    }
    assert {c.freezing for c in ours if c.backend == "inductor"} == {True}


def test_fullgraph_is_answered_by_the_same_setting_without_it() -> None:
    listed = set(space().settings)
    for setting in listed:
        twin = setting.plainer_twin
        assert bool(twin) is setting.config.fullgraph
        assert twin is None or twin in listed
    full = CompileConfig(fullgraph=True)
    assert Setting(full, 4).plainer_twin == Setting(CompileConfig(), 4)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"freezing": ("false",)}, "freezing: 'false' is not of type bool"),
        ({"batch_sizes": ("4",)}, "batch_sizes: '4' is not of type int"),
        ({"threads": ("2",)}, "threads: '2' is not of type int"),
        ({"batch_sizes": 4}, "batch_sizes: 4 is not some values"),
        ({"backends": "onnxrt"}, "backends: 'onnxrt' is not some values"),
        ({"scope": []}, r"scope: \[\] is not some values"),
        ({"batch_sizes": (0,)}, "batch size 0 is below 1"),
        ({"memory_format": ("nhwc",)}, "'nhwc' is none of default, channels_last"),
        ({"threads": (0,)}, "0 threads are too few"),
        (
            {"modes": ("max-autotune",), "options": ((("cpp_wrapper", True),),)},
            "torch takes either",
        ),
    ],
)
def test_a_value_that_cannot_be_is_refused_in_words(
    asked: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        SearchSpace(**asked)


def test_what_a_backend_does_not_take_is_left_out_with_its_reason() -> None:
    found = space(backends=("onnxrt",), modes=("max-autotune",))
    assert {c.backend for c in configs(found)} == {"eager", "onnxrt"}
    assert found.dropped["onnxrt has no modes"] == 1
    found = space(backends=("onnxrt", "inductor"), options=({"weights": "baked"},))
    assert {(c.backend, c.options) for c in configs(found)} >= {
        ("onnxrt", (("weights", "baked"),)),
        ("inductor", ()),
    }
    assert not any(c.backend == "onnxrt" and not c.options for c in configs(found))
    assert found.dropped["inductor has no option weights"] == 1
    asked = SearchSpace(backends=("inductor",), options=((("weights", "baked"),),))
    with pytest.raises(UsageError, match="option 'weights' is unknown"):
        demand_offered(asked, [OFFERED])


@pytest.mark.parametrize(
    ("place", "reason", "count"),
    [
        (CNN, "inductor's options for cuda are not for cpu", 6),
        (CNN, "the inductor of this torch has no option cpp.simdlen", 1),
        (CNN, "--autocast only by name, since it changes numbers", 2),
        (CNN, "the model repeats no block", 1),
        (ADAM, "weights that are trained cannot be frozen", 1),
        (ADAM, "an optimizer's step multiplies no matrices", 4),
    ],
)
def test_all_that_nobody_asked_for_is_left_out_with_its_reason(
    place: Place, reason: str, count: int
) -> None:
    assert space(place).dropped[reason] == count


def test_what_was_asked_for_is_not_left_out() -> None:
    found = space(
        threads=(1,), fullgraph=(True,), autocast=("bfloat16",), modes=("default",)
    )
    assert not [
        r for r in found.dropped if r.startswith(("--thr", "--full", "--autoc"))
    ]


def test_modes_that_options_leave_no_room_for_are_counted() -> None:
    offered = dataclasses.replace(OFFERED, options=["cpp_wrapper"])
    found = build_space(SearchSpace(), offered, CNN, (1,))
    assert found.dropped["torch takes a mode or options"] > 0


def test_every_entry_of_the_tables_is_used() -> None:
    """A constraint that refuses nothing, or a dimension that is nowhere tried, is dead."""
    training = Place("train_step", "cuda", threads=4, optimizers=("fused",))
    of_ranks = dataclasses.replace(training, strategy="ddp")
    of_parts = dataclasses.replace(training, strategy="fsdp2")
    places = [CNN, ADAM, training, BLOCKS, LENGTHS, of_ranks, of_parts]
    for dimension in DIMENSIONS:
        reasons = {dimension.missing(place) for place in places}
        for place in places:
            for value in dimension.tried(place)[1:]:
                for backend in ("eager", *BACKENDS):
                    config = CompileConfig(backend, **{dimension.name: value})
                    reasons.add(dimension.why_not(config, place))
        assert "" in reasons, dimension.name
        # Any backend takes these, in any phase and on any device.
        is_free = dimension.applied == "argument" or dimension.name == "environment"
        is_free &= dimension.name not in (
            "dynamic",
            "recompile_limit",
        )  # for a count of shapes
        assert (len(reasons) > 1) is not is_free, dimension.name
