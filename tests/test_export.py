"""What the exporters write, as text; tests/test_export_runs.py runs it."""

from __future__ import annotations

import ast
import copy
import io
import json
import subprocess
import sys
import tokenize
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autocompile.backends import BACKENDS
from autocompile.errors import ExportError, UsageError
from autocompile.export import FORMATS, export, export_order, use_line
from autocompile.export.rllib import framework_kwargs

SAMPLE = json.loads((Path(__file__).parent / "data" / "report.json").read_text("utf-8"))
SCRIPTS = [name for name in FORMATS if name != "json"]
EAGER = SAMPLE["phases"]["optimizer_step"]["best"]["config"]


@pytest.fixture
def rl_report() -> dict[str, Any]:
    """The invented report: RLlib, exploration faster, optimizer step not."""
    report: dict[str, Any] = copy.deepcopy(SAMPLE)
    return report


@pytest.fixture
def plain_report() -> dict[str, Any]:
    """The same numbers for the forward pass of a plain module."""
    report: dict[str, Any] = copy.deepcopy(SAMPLE)
    report["target"].update(
        spec="model.py",
        kind="functions",
        algorithm=None,
        own_batch_size={},
        build=["import runpy", 'model = runpy.run_path("model.py")["get_model"]()'],
    )
    report["phases"] = {"forward": report["phases"]["forward_exploration"]}
    return report


@pytest.fixture
def report_for(
    rl_report: dict[str, Any], plain_report: dict[str, Any]
) -> Callable[[str], dict[str, Any]]:
    """The report that has a form in a format."""
    return lambda to: rl_report if to == "rllib" else plain_report


def set_verdicts(report: dict[str, Any], verdict: str) -> None:
    for phase in report["phases"].values():
        phase["verdict"] = verdict
        if verdict == "keep_eager":
            phase["best"]["config"] = EAGER
        if verdict == "failed":
            phase["best"] = None


def change_config(report: dict[str, Any], phase: str, **changes: Any) -> None:
    report["phases"][phase]["best"]["config"].update(changes)


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("verdict", ["faster", "keep_eager"])
def test_every_format_yields_text_for_a_result(
    to: str, verdict: str, report_for: Callable[[str], dict[str, Any]]
) -> None:
    report = report_for(to)
    set_verdicts(report, verdict)
    text = export(report, to)
    assert text.endswith("\n") and not text.endswith("\n\n")
    if to == "json":
        json.loads(text)
    else:
        compile(text, to, "exec")
        assert "import autocompile" not in text
    assert ("max-autotune" in text) == (verdict == "faster")


@pytest.mark.parametrize("to", FORMATS)
def test_every_format_refuses_a_report_in_which_everything_failed(
    to: str, report_for: Callable[[str], dict[str, Any]]
) -> None:
    report = report_for(to)
    set_verdicts(report, "failed")
    with pytest.raises(ExportError, match="nothing to export"):
        export(report, to)


@pytest.mark.parametrize("to", FORMATS)
def test_a_report_without_phases_is_refused(
    to: str, report_for: Callable[[str], dict[str, Any]]
) -> None:
    report = report_for(to)
    report["phases"] = {}
    with pytest.raises(ExportError, match="nothing to export"):
        export(report, to)


@pytest.mark.parametrize("to", FORMATS)
def test_exporting_leaves_the_report_as_it_was(
    to: str, report_for: Callable[[str], dict[str, Any]]
) -> None:
    report = report_for(to)
    before = copy.deepcopy(report)
    export(report, to)
    assert report == before


def test_an_unknown_format_is_a_usage_error_that_names_the_nearest(
    rl_report: dict[str, Any],
) -> None:
    with pytest.raises(UsageError, match="no export format 'rlib'") as caught:
        export(rl_report, "rlib")
    assert caught.value.hint == "autocompile export last --to rllib"


@pytest.mark.parametrize("to", SCRIPTS)
@pytest.mark.parametrize("change", [{}, {"dynamic": True, "fullgraph": True}])
def test_scripts_are_formatted_as_a_formatter_would(
    to: str, change: dict[str, Any], report_for: Callable[[str], dict[str, Any]]
) -> None:
    report = report_for(to)
    report["target"]["build"] = ["import runpy", 'model = runpy.run_path("m.py")["model"]']
    for phase in report["phases"].values():
        if phase["verdict"] == "faster":
            phase["best"]["config"].update(change)
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--diff", "-"]
    done = subprocess.run(command, input=export(report, to), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


NASTY = "x\"\"\"\n'''\rimport os; os.abort()\x0c\x85\u2028import os #\\ \ud800 {0} %s \N{SNOWMAN}"


@pytest.mark.parametrize("to", SCRIPTS)
def test_text_from_a_report_never_becomes_code(
    to: str, report_for: Callable[[str], dict[str, Any]]
) -> None:
    clean, dirty = report_for(to), copy.deepcopy(report_for(to))
    dirty["target"]["spec"] = dirty["run_dir"] = NASTY
    dirty["environment"].update(device_name=NASTY, torch=NASTY, autocompile=NASTY)
    dirty["target"]["choices"]["optimizer"] = NASTY
    for phase in dirty["phases"].values():
        phase["reason"] = NASTY
    text = export(dirty, to)
    assert ast.dump(ast.parse(text)) == ast.dump(ast.parse(export(clean, to)))
    assert text.isascii()


@pytest.mark.parametrize("to", SCRIPTS)
def test_text_of_an_environment_never_becomes_code(
    to: str, report_for: Callable[[str], dict[str, Any]]
) -> None:
    shapes = []
    for name in ("plain", NASTY):
        report = report_for(to)
        report["environments"] = {name: {"torch": name, "python_path": name}}
        for phase in report["phases"].values():
            if phase["verdict"] == "faster":
                phase["best"]["config"]["environment"] = name
        text = export(report, to)
        assert text.isascii()
        shapes.append([type(node).__name__ for node in ast.parse(text).body])
    assert shapes[0] == shapes[1]


def test_an_algorithm_that_is_no_dotted_name_is_not_imported(rl_report: dict[str, Any]) -> None:
    for name in ("os;import x:A", "a.b:C.D", "a:import", "__main__:Mine", "nothing", ":", None):
        rl_report["target"]["algorithm"] = name
        text = export(rl_report, "rllib")
        assert "algorithm_config import AlgorithmConfig\n" in text
        assert "names no algorithm" in text


@pytest.mark.parametrize("value", [NASTY.replace("\ud800", ""), 'a"b', "a'b", 1.5, -3, None, True])
@pytest.mark.parametrize("to", ["python", "accelerate"])
def test_option_values_survive_as_they_are(
    to: str, value: Any, plain_report: dict[str, Any]
) -> None:
    change_config(plain_report, "forward", mode="default", options={"key": value})
    tree = ast.parse(export(plain_report, to))
    options = [
        ast.literal_eval(v)
        for node in ast.walk(tree)
        for v in (
            [node.value]
            if isinstance(node, ast.keyword) and node.arg == "options"
            else [v for k, v in zip(node.keys, node.values, strict=True) if _is(k, "options")]
            if isinstance(node, ast.Dict)
            else []
        )
    ]
    assert options == [{"key": value}]


def _is(node: ast.expr | None, text: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == text


def test_build_lines_that_are_not_python_are_refused(plain_report: dict[str, Any]) -> None:
    plain_report["target"]["build"] = ["model = ("]
    for to in ("python", "accelerate"):
        with pytest.raises(ExportError, match="not Python"):
            export(plain_report, to)


def test_the_json_says_what_its_numbers_are(rl_report: dict[str, Any]) -> None:
    document = json.loads(export(rl_report, "json"))
    phases = document["phases"]
    assert phases["forward_exploration"]["torch_compile"] == {
        "backend": "inductor",
        "mode": "max-autotune",
    }
    assert phases["forward_exploration"]["speedup"]["value"] == 1.41
    assert phases["optimizer_step"]["torch_compile"] is None
    assert phases["optimizer_step"]["verdict"] == "keep_eager"
    assert document["environment"]["torch"] == "2.13.0+cpu"
    assert {"torch_compile", "speedup", "throughput"} <= document["about"].keys()


def test_python_names_the_evidence_of_each_phase(rl_report: dict[str, Any]) -> None:
    text = " ".join(_comments(export(rl_report, "python")))
    for words in ("1.41x [1.39, 1.43]", "batch size 16", "torch 2.13.0+cpu", "AMD EPYC (cpu)"):
        assert words in text
    assert "optimizer_step: keep eager" in text


def _comments(text: str) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT]


def test_python_for_an_object_defines_functions_only(plain_report: dict[str, Any]) -> None:
    plain_report["target"]["build"] = None
    text = export(plain_report, "python")
    assert "def compile_forward(model):" in text
    assert "__main__" not in text and "build_model" not in text
    assert "object in Python" in text


def test_python_moves_the_model_to_the_device_it_was_measured_on(
    plain_report: dict[str, Any],
) -> None:
    plain_report["environment"]["device"] = "cuda:0"
    assert 'return model.to("cuda:0")\n' in export(plain_report, "python")


@pytest.mark.parametrize("name", [n for n, known in BACKENDS.items() if known.registered_by])
def test_python_imports_the_package_of_each_backend_that_has_one(
    name: str, plain_report: dict[str, Any]
) -> None:
    change_config(plain_report, "forward", backend=name, mode="default")
    assert f"\nimport {BACKENDS[name].registered_by}  #" in export(plain_report, "python")


@pytest.mark.parametrize("name", [n for n, known in BACKENDS.items() if not known.trains])
@pytest.mark.parametrize("to", ["accelerate", "transformers"])
def test_model_stacks_refuse_what_computes_no_gradients(
    to: str, name: str, plain_report: dict[str, Any]
) -> None:
    change_config(plain_report, "forward", backend=name, mode="default")
    with pytest.raises(ExportError, match=r"no gradients|not take the backend"):
        export(plain_report, to)


def test_python_refuses_a_setting_that_is_more_than_arguments(
    plain_report: dict[str, Any],
) -> None:
    change_config(plain_report, "forward", scope="regional")
    with pytest.raises(ExportError, match="has no form in plain torch") as caught:
        export(plain_report, "python")
    assert "scope='regional'" in str(caught.value)


def test_rllib_refuses_a_target_that_is_no_rlmodule(plain_report: dict[str, Any]) -> None:
    with pytest.raises(ExportError, match="no RLModule") as caught:
        export(plain_report, "rllib")
    assert caught.value.hint == "autocompile export last --to python"


@pytest.mark.parametrize("to", ["accelerate", "transformers"])
def test_model_stacks_refuse_an_rlmodule_and_point_to_rllib(
    to: str, rl_report: dict[str, Any]
) -> None:
    with pytest.raises(ExportError, match="no form for an RLModule") as caught:
        export(rl_report, to)
    assert caught.value.hint == "autocompile export last --to rllib"


@pytest.mark.parametrize("to", ["accelerate", "transformers"])
def test_model_stacks_refuse_what_accelerate_does_not_know(
    to: str, plain_report: dict[str, Any]
) -> None:
    change_config(plain_report, "forward", backend="my_backend", mode="default")
    with pytest.raises(ExportError, match="'my_backend'") as caught:
        export(plain_report, to)
    assert "inductor" in str(caught.value)


@pytest.mark.parametrize("to", ["accelerate", "transformers"])
def test_model_stacks_have_no_form_for_an_optimizer_step_alone(
    to: str, plain_report: dict[str, Any]
) -> None:
    plain_report["phases"] = {"optimizer_step": SAMPLE["phases"]["optimizer_step"]}
    with pytest.raises(ExportError, match="forward pass"):
        export(plain_report, to)


@pytest.mark.parametrize("to", ["accelerate", "transformers"])
def test_model_stacks_fall_back_to_the_training_step(to: str, plain_report: dict[str, Any]) -> None:
    plain_report["phases"]["train_step"] = copy.deepcopy(plain_report["phases"]["forward"])
    plain_report["phases"]["forward"].update(verdict="failed", best=None)
    text = export(plain_report, to)
    assert "# train_step: 1.41x" in text and "max-autotune" in text


def test_rllib_warns_of_what_matters_for_this_setting_only(rl_report: dict[str, Any]) -> None:
    plain = export(rl_report, "rllib")
    assert "never compiles env runners" in plain and "dynamic" not in plain
    change_config(rl_report, "forward_exploration", dynamic=True)
    assert "no field for dynamic=True: dropped" in export(rl_report, "rllib")
    set_verdicts(rl_report, "keep_eager")
    assert "WARNING" not in export(rl_report, "rllib")


def test_rllib_says_which_phase_the_learner_setting_was_measured_on(
    rl_report: dict[str, Any],
) -> None:
    step = copy.deepcopy(rl_report["phases"]["forward_exploration"])
    rl_report["phases"] = {"optimizer_step": step}
    text = " ".join(_comments(export(rl_report, "rllib")))
    assert "measured on optimizer_step" in text
    assert "torch_compile_worker" not in export(rl_report, "rllib")
    rl_report["phases"]["train_step"] = step
    assert "measured on" not in " ".join(_comments(export(rl_report, "rllib"))[3:])


def test_framework_kwargs_come_with_a_sentence_for_all_that_is_ignored(
    rl_report: dict[str, Any],
) -> None:
    change_config(rl_report, "forward_exploration", fullgraph=True)
    kwargs, ignored = framework_kwargs(rl_report)
    assert kwargs["torch_compile_worker"] is True and kwargs["torch_compile_learner"] is False
    assert [text.split(":")[0] for text in ignored] == ["worker", "worker"]
    assert "fullgraph=True" in ignored[1]


def test_scripts_take_the_setting_of_the_users_own_batch_size(rl_report: dict[str, Any]) -> None:
    rl_report["target"]["own_batch_size"] = {"forward_exploration": 1}
    assert "dynamo_mode=None" in export(rl_report, "rllib")
    assert 'FORWARD_EXPLORATION = {\n    "backend": "inductor",\n}' in export(rl_report, "python")
    for to in ("rllib", "python"):
        text = " ".join(_comments(export(rl_report, to)))
        assert "1.20x [1.18, 1.22] as fast as eager at batch size 1 (trial 2)" in text
        assert "this configuration's own, over all of them trial 5 is best" in text


def test_the_users_own_batch_size_counts_where_eager_is_best_over_all(
    rl_report: dict[str, Any],
) -> None:
    phase = rl_report["phases"]["forward_exploration"]
    phase["verdict"], phase["best"]["config"] = "keep_eager", EAGER
    rl_report["target"]["own_batch_size"] = {"forward_exploration": 16}
    assert "torch_compile_worker=False" in export(rl_report, "rllib")
    rl_report["target"]["own_batch_size"] = {"forward_exploration": 1}
    text = export(rl_report, "rllib")
    assert "torch_compile_worker=True" in text
    assert "over all of them eager is best" in " ".join(_comments(text))
    phase["by_batch_size"][0]["faster"] = False
    assert "torch_compile_worker=False" in export(rl_report, "rllib")


def test_ties_decide_at_the_batch_size_of_the_best_setting(rl_report: dict[str, Any]) -> None:
    rl_report["target"]["own_batch_size"] = {"forward_exploration": 16}
    rl_report["phases"]["forward_exploration"]["by_batch_size"][1]["number"] = 6
    assert 'dynamo_mode="max-autotune"' in export(rl_report, "rllib")


def test_rllib_keeps_eager_where_the_users_own_batch_size_gains_nothing(
    rl_report: dict[str, Any],
) -> None:
    rl_report["target"]["own_batch_size"] = {"forward_exploration": 1}
    row = rl_report["phases"]["forward_exploration"]["by_batch_size"][0]
    row["speedup"] = {"value": 1.004, "low": 0.99, "high": 1.02}
    assert "torch_compile_worker=False" in export(rl_report, "rllib")
    assert use_line(rl_report).startswith("leave it uncompiled")
    assert use_line(rl_report).endswith("at this configuration's own batch size 1")
    row["speedup"] = {"value": 1.05, "low": 1.04, "high": 1.06}
    row["faster"] = False  # as it was decided for that batch size
    assert "torch_compile_worker=False" in export(rl_report, "rllib")


def test_rllib_says_when_the_users_own_batch_size_was_not_measured(
    rl_report: dict[str, Any],
) -> None:
    rl_report["target"]["own_batch_size"] = {"forward_exploration": 64}
    text = " ".join(_comments(export(rl_report, "rllib")))
    assert "own batch size 64 was not measured" in text
    assert "max-autotune" in export(rl_report, "rllib")


def test_use_line_for_an_env_runner_is_the_script_since_ray_compiles_none(
    rl_report: dict[str, Any],
) -> None:
    line = "autocompile export mine --to python   (ray's env runners never compile"
    assert use_line(rl_report, "mine") == f"{line})"
    change_config(rl_report, "forward_exploration", memory_format="channels_last")
    lost = "ray has no field for memory_format='channels_last'"
    assert use_line(rl_report, "mine") == f"{line}, {lost})"


def test_use_line_for_a_learner_is_a_framework_call_where_ray_carries_all(
    rl_report: dict[str, Any],
) -> None:
    rl_report["phases"] = {"train_step": rl_report["phases"]["forward_exploration"]}
    assert use_line(rl_report) == (
        'config.framework("torch", torch_compile_learner=True, '
        'torch_compile_learner_what_to_compile="complete_update", '
        'torch_compile_learner_dynamo_backend="inductor", '
        'torch_compile_learner_dynamo_mode="max-autotune")'
    )
    change_config(rl_report, "train_step", fullgraph=True)
    assert use_line(rl_report) == (
        "autocompile export last --to python   (ray has no field for fullgraph=True)"
    )


def test_what_rllib_compiles_nothing_for_is_in_one_line_and_goes_to_a_script(
    rl_report: dict[str, Any],
) -> None:
    phases = rl_report["phases"]
    phases["optimizer_step"] = copy.deepcopy(phases["forward_exploration"])
    rl_report["target"]["own_batch_size"] = {}
    eager = {"backend": "eager", "mode": "default"}
    change_config(rl_report, "forward_exploration", memory_format="channels_last", **eager)
    change_config(rl_report, "optimizer_step", optimizer="fused", **eager)
    use = use_line(rl_report)
    assert "channels_last" in use and 'set_implementation(optimizer, "fused")' in use
    assert export_order(rl_report, use)[0] == "python"


def test_use_line_of_several_compiled_phases_is_the_script(plain_report: dict[str, Any]) -> None:
    phases = plain_report["phases"]
    phases["train_step"] = copy.deepcopy(phases["forward"])
    use = use_line(plain_report)
    assert use.startswith("autocompile export last --to python   (2 phases are faster")
    assert export_order(plain_report, use)[0] == "python"


def test_blocks_compiled_for_one_phase_are_those_of_another(plain_report: dict[str, Any]) -> None:
    """They are compiled in place."""
    phases = plain_report["phases"]
    plain_report["target"]["blocks"] = {"forward": ["0", "1"], "train_step": ["0", "1"]}
    change_config(plain_report, "forward", scope="regional")
    phases["train_step"] = copy.deepcopy(phases["forward"])
    assert "compile_block" in export(plain_report, "python")  # the same of both
    change_config(plain_report, "train_step", mode="default")
    with pytest.raises(ExportError, match="one model cannot have its blocks compiled"):
        export(plain_report, "python")
    change_config(plain_report, "train_step", scope="full")
    with pytest.raises(ExportError, match="one model cannot have its blocks compiled"):
        export(plain_report, "python")
    assert use_line(plain_report).startswith("autocompile export last --to json")
    phases["train_step"]["verdict"] = "keep_eager"  # it would run the compiled blocks
    with pytest.raises(ExportError, match="one model cannot have its blocks compiled"):
        export(plain_report, "python")


def test_use_line_sets_nothing_of_the_process_for_one_of_two_phases(
    plain_report: dict[str, Any],
) -> None:
    phases = plain_report["phases"]
    phases["optimizer_step"] = copy.deepcopy(phases["forward"])
    phases["optimizer_step"]["verdict"] = "keep_eager"
    change_config(plain_report, "forward", backend="eager", mode="default", threads=1)
    assert use_line(plain_report).startswith("autocompile export last --to python")
    assert "in_own_state(" in export(plain_report, "python")
    phases["optimizer_step"]["verdict"] = "failed"  # it asks for nothing
    assert use_line(plain_report) == "torch.set_num_threads(1)"
    assert "in_own_state(" not in export(plain_report, "python")
    del phases["optimizer_step"]
    assert use_line(plain_report) == "torch.set_num_threads(1)"


def test_use_line_for_a_phase_of_rllib_that_has_no_field_is_the_script(
    rl_report: dict[str, Any],
) -> None:
    phases = rl_report["phases"]
    phases["forward_inference"] = copy.deepcopy(phases["forward_exploration"])
    phases["forward_exploration"]["verdict"] = "keep_eager"
    assert use_line(rl_report).startswith("autocompile export last --to python")


ELSEWHERE = {"torch": "2.8.0+cpu", "python_path": "/somewhere/ipex/bin/python"}


def test_evidence_names_the_torch_of_another_interpreter(plain_report: dict[str, Any]) -> None:
    plain_report["environments"] = {"ipex": ELSEWHERE}
    change_config(plain_report, "forward", environment="ipex")
    for to in SCRIPTS[:1] + SCRIPTS[2:]:
        text = " ".join(_comments(export(plain_report, to)))
        assert "torch 2.8.0+cpu on AMD EPYC" in text and "environment ipex" in text
        assert "2.13.0" not in text


@pytest.mark.parametrize("to", ["rllib", "accelerate", "transformers"])
def test_stacks_warn_that_they_do_not_change_the_interpreter(
    to: str, report_for: Callable[[str], dict[str, Any]]
) -> None:
    report = report_for(to)
    report["environments"] = {"ipex": ELSEWHERE}
    change_config(report, next(iter(report["phases"])), environment="ipex")
    text = " ".join(_comments(export(report, to)))
    assert "WARNING" in text and "environment='ipex'" in text


def test_python_imports_what_is_of_another_interpreter_after_refusing_the_wrong_one(
    plain_report: dict[str, Any],
) -> None:
    plain_report["environments"] = {"ipex": ELSEWHERE}
    change_config(plain_report, "forward", environment="ipex", backend="ipex", mode="default")
    text = export(plain_report, "python")
    assert text.index("raise RuntimeError") < text.index("import intel_extension_for_pytorch")
    del plain_report["environments"]["ipex"]
    with pytest.raises(ExportError, match="has no form in plain torch"):
        export(plain_report, "python")


def test_phases_of_different_interpreters_have_no_script(plain_report: dict[str, Any]) -> None:
    plain_report["environments"] = {"ipex": ELSEWHERE}
    plain_report["phases"]["train_step"] = copy.deepcopy(plain_report["phases"]["forward"])
    change_config(plain_report, "forward", environment="ipex")
    with pytest.raises(ExportError, match="different interpreters") as caught:
        export(plain_report, "python")
    assert "forward: ipex" in str(caught.value)
    assert "--to json" in use_line(plain_report)
    found = json.loads(export(plain_report, "json"))
    assert found["environments"] == {"ipex": ELSEWHERE}


def test_accelerate_warns_that_its_regions_are_others(plain_report: dict[str, Any]) -> None:
    change_config(plain_report, "forward", scope="regional")
    text = export(plain_report, "accelerate")
    assert "use_regional_compilation=True" in text
    assert "the entries of an nn.ModuleList only" in " ".join(_comments(text))
    change_config(plain_report, "forward", scope="full")
    assert "WARNING" not in export(plain_report, "accelerate")


def test_use_line_for_a_module_is_a_torch_compile_call(plain_report: dict[str, Any]) -> None:
    assert use_line(plain_report) == (
        'model = torch.compile(model, backend="inductor", mode="max-autotune")'
    )
    change_config(plain_report, "forward", mode="default", options={"a": False}, dynamic=True)
    assert use_line(plain_report) == (
        'model = torch.compile(model, backend="inductor", options={"a": False}, dynamic=True)'
    )


@pytest.mark.parametrize(
    ("phase", "start"),
    [
        ("optimizer_step", "step = torch.compile(optimizer.step, "),
        ("train_step", "step = torch.compile(train_step, "),
    ],
)
def test_use_line_for_a_step_compiles_the_step(
    phase: str, start: str, plain_report: dict[str, Any]
) -> None:
    plain_report["phases"] = {phase: plain_report["phases"]["forward"]}
    assert use_line(plain_report).startswith(start)


@pytest.mark.parametrize("to", ["rllib", "python"])
def test_use_line_says_when_there_is_nothing_to_compile(
    to: str, report_for: Callable[[str], dict[str, Any]]
) -> None:
    report = report_for(to)
    set_verdicts(report, "keep_eager")
    assert use_line(report).startswith("leave it uncompiled")
    set_verdicts(report, "failed")
    assert use_line(report) == "nothing to use: no setting worked"


def test_the_exporters_import_no_stack() -> None:
    stacks = ("torch", "ray", "accelerate", "transformers")
    code = f"import sys, autocompile.export; print([m for m in {stacks} if m in sys.modules])"
    root = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_an_eager_winner_has_no_arguments_and_all_of_its_setting(
    plain_report: dict[str, Any],
) -> None:
    best = plain_report["phases"]["forward"]["best"]
    best["config"] = {**EAGER, "memory_format": "channels_last", "autocast": "bfloat16"}
    found = json.loads(export(plain_report, "json"))["phases"]["forward"]
    assert found["torch_compile"] is None
    assert found["config"]["autocast"] == "bfloat16"
