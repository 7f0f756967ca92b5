from __future__ import annotations

from collections.abc import Callable

import pytest

from autocompile.errors import UsageError
from autocompile.settings.config import DEFAULT_INDUCTOR, EAGER, CompileConfig


def test_equal_settings_compare_hash_and_key_equal() -> None:
    one = CompileConfig(options={"b": 1, "a": True})  # type: ignore[arg-type]
    two = CompileConfig(options=(("a", True), ("b", 1)))
    assert one == two
    assert hash(one) == hash(two)
    assert one.key == two.key


def test_eager_has_one_form_whatever_else_is_said() -> None:
    assert CompileConfig("eager", "max-autotune", fullgraph=True, dynamic=True) == EAGER


@pytest.mark.parametrize(
    ("config", "kwargs"),
    [
        (DEFAULT_INDUCTOR, {"backend": "inductor"}),
        (CompileConfig(mode="lite"), {"backend": "inductor", "mode": "lite"}),
        (
            CompileConfig("cudagraphs", fullgraph=True, dynamic=False),
            {"backend": "cudagraphs", "fullgraph": True, "dynamic": False},
        ),
        (
            CompileConfig(options=(("epilogue_fusion", False),)),
            {"backend": "inductor", "options": {"epilogue_fusion": False}},
        ),
    ],
)
def test_arguments_of_torch_compile_leave_defaults_out(
    config: CompileConfig, kwargs: dict[str, object]
) -> None:
    assert config.compile_kwargs() == kwargs


@pytest.mark.parametrize("config", [EAGER, DEFAULT_INDUCTOR, CompileConfig(mode="x", dynamic=True)])
def test_json_gives_the_same_setting_back(config: CompileConfig) -> None:
    assert CompileConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    ("do", "said"),
    [
        (lambda: CompileConfig(mode="lite", options=(("freezing", True),)), "cannot go together"),
        (EAGER.compile_kwargs, "not compiled"),
        (lambda: CompileConfig.from_dict({"speed": 1}), "no key 'speed'"),
    ],
)
def test_what_makes_no_sense_is_refused(do: Callable[[], object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        do()


def test_labels_name_what_differs() -> None:
    assert DEFAULT_INDUCTOR.label() == "plain torch.compile()"
    assert EAGER.label() == "eager"
    config = CompileConfig(mode="max-autotune", fullgraph=True, dynamic=False)
    assert config.label() == "inductor max-autotune · fullgraph · static"
    assert config.changes() == 3
