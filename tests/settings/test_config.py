from __future__ import annotations

from collections.abc import Callable

import pytest

from autocompile.errors import UsageError
from autocompile.settings.config import DEFAULT_INDUCTOR, EAGER, CompileConfig
from autocompile.settings.tuned import Tuned


def test_equal_settings_compare_and_hash_equal() -> None:
    one = CompileConfig(options={"b": 1, "a": True})  # type: ignore[arg-type]
    two = CompileConfig(options=(("a", True), ("b", 1)))
    assert one == two
    assert hash(one) == hash(two)


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


@pytest.mark.parametrize(
    "config",
    [
        EAGER,
        DEFAULT_INDUCTOR,
        CompileConfig(mode="x", dynamic=True),
        CompileConfig(dynamic=False, recompile_limit=16),
    ],
)
def test_json_gives_the_same_setting_back(config: CompileConfig) -> None:
    assert CompileConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    ("do", "said"),
    [
        (
            lambda: CompileConfig(mode="lite", options=(("freezing", True),)),
            "cannot go together",
        ),
        (lambda: CompileConfig.from_dict({"speed": 1}), "no key 'speed'"),
        (
            lambda: CompileConfig.from_dict({"mark_dynamic": [["ids", 1, 9, 256]]}),
            "no key 'mark_dynamic'",
        ),
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


SHELL = "off -wrapper 'sh,-c,touch stolen'"  # g++ runs this as it compiles


@pytest.mark.parametrize(
    "options",
    [
        {"cpp.enable_floating_point_contract_flag": SHELL},
        {"cpp.march": "native -fplugin=./theirs.so"},
        {"cpp.cxx": [None, "./theirs"]},
        {"cuda.cuda_cxx": "theirs"},
        {"cuda.cutlass_dir": "theirs"},
        {"rocm.rocm_home": "theirs"},
        {"aot_inductor.custom_op_libs": ["theirs.so"]},
        {"fx_graph_remote_cache": True},
        {"pre_grad_fusion_options": {"theirs": {}}},
    ],
)
def test_no_option_of_a_file_of_settings_brings_in_a_program(
    options: dict[str, object],
) -> None:
    row = {"batch_size": 4, "speedup": {}, "confirmed_processes": 3}
    one = {
        "fingerprint": {},
        "target": "model.py",
        "batch_sizes": {},
        "interpreters": {},
    }

    def read(options: dict[str, object]) -> None:
        phases = {"forward": [{**row, "config": {"options": options}}]}
        Tuned.from_dict(
            {"autocompile_settings": 1, **one, "phases": phases}, "tuned.json"
        )

    read(
        {
            "cpp.simdlen": 256,
            "max_autotune_gemm_backends": "ATEN,TRITON",
            "cpp.march": "x86-64",
        }
    )
    with pytest.raises(UsageError, match="is not taken"):
        read(options)


def test_a_value_of_another_kind_is_refused() -> None:
    for changes in (
        {"threads": "1"},
        {"threads": True},
        {"fullgraph": 1},
        {"dynamic": "True"},
    ):
        with pytest.raises(UsageError, match="is not a value of this setting"):
            CompileConfig.from_dict(changes)
