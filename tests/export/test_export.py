"""What the exporters write, as text; tests/export/test_export_runs.py runs it."""

from __future__ import annotations

import ast
import contextlib
import copy
import io
import itertools
import json
import subprocess
import sys
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from autocompile import export as exporting
from autocompile.cli.browse import Format
from autocompile.errors import AutocompileError, ExportError, UsageError
from autocompile.export import FORMATS
from autocompile.export.choices import choices, facts_of
from autocompile.export.lines import of_optimizer
from autocompile.result import Result
from autocompile.settings.backends import BACKENDS
from autocompile.settings.config import CompileConfig
from autocompile.settings.dimensions import DIMENSIONS
from autocompile.store.report import Report as TypedReport

Report = dict[str, Any]

SAMPLE = json.loads(
    (Path(__file__).parents[1] / "data" / "report.json").read_text("utf-8")
)
SCRIPTS = [name for name in FORMATS if name != "json"]
STACKS = ["accelerate", "transformers", "lightning"]
EAGER = SAMPLE["phases"]["optimizer_step"]["answer"]["best"]["config"]


def typed(report: Report) -> TypedReport:
    found: TypedReport = TypedReport.from_dict(report)
    return found


def export(report: Report, to: str) -> str:
    return exporting.export(typed(report), to)


def unconfirmed(report: Report) -> list[str]:
    return exporting.unconfirmed(typed(report))


def use_line(report: Report, run: str = "last") -> str:
    return exporting.use_line(typed(report), run)


def to_paste(report: Report) -> dict[str, str]:
    return exporting.to_paste(typed(report))


@pytest.fixture
def rl() -> Report:
    """The invented report: RLlib, exploration faster, optimizer step not."""
    report: Report = copy.deepcopy(SAMPLE)
    return report


@pytest.fixture
def plain() -> Report:
    """The same numbers for the forward pass of a plain module."""
    report: Report = copy.deepcopy(SAMPLE)
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
def report_for(rl: Report, plain: Report) -> Callable[[str], Report]:
    """The report that has a form in a format."""
    return lambda to: rl if to == "rllib" else plain


def set_verdict(phase: Report, verdict: str) -> None:
    answer = phase["answer"]
    answer["verdict"] = verdict
    if verdict == "keep_eager":
        answer["best"]["config"] = EAGER
    if verdict in ("failed", "unknown"):
        answer.update(best=None, next=None, confidence="")


def set_verdicts(report: Report, verdict: str) -> None:
    for phase in report["phases"].values():
        set_verdict(phase, verdict)


def change_config(report: Report, phase: str, **changes: Any) -> None:
    report["phases"][phase]["answer"]["best"]["config"].update(changes)


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("verdict", ["faster", "keep_eager"])
def test_every_format_yields_text_for_a_result_and_leaves_the_report_as_it_was(
    to: str, verdict: str, report_for: Callable[[str], Report]
) -> None:
    report = report_for(to)
    set_verdicts(report, verdict)
    before = copy.deepcopy(report)
    text = export(report, to)
    assert report == before
    assert text.endswith("\n") and not text.endswith("\n\n")
    if to == "json":
        json.loads(text)
    else:
        compile(text, to, "exec")
        assert "import autocompile" not in text and "report_to" not in text
    reads = {
        "lightning": "TunedCallback",
        "transformers": "TunedCallback",
        "rllib": "tuned.json",
    }
    used = reads.get(to, "max-autotune")
    assert (used in text) == (verdict == "faster")


@pytest.mark.parametrize("to", FORMATS)
def test_every_format_refuses_a_report_of_nothing(
    to: str, report_for: Callable[[str], Report]
) -> None:
    report = report_for(to)
    set_verdicts(report, "failed")
    for phases in (report["phases"], {}):
        report["phases"] = phases
        with pytest.raises(ExportError, match="nothing to export"):
            export(report, to)


def test_an_unknown_format_is_a_usage_error_that_names_those_that_are_known(
    rl: Report,
) -> None:
    with pytest.raises(UsageError, match="unknown export format 'rlib'") as caught:
        export(rl, "rlib")
    assert caught.value.hint == "autocompile export ppo_breakout-0003 --to python"


def test_a_command_to_paste_holds_a_runs_name_as_one_word(rl: Report) -> None:
    rl["run_dir"] = "runs/x; touch stolen"
    with pytest.raises(UsageError) as caught:
        export(rl, "rlib")
    assert caught.value.hint == "autocompile export 'x; touch stolen' --to python"


@pytest.mark.parametrize("to", SCRIPTS)
@pytest.mark.parametrize("change", [{}, {"dynamic": True, "fullgraph": True}])
def test_scripts_are_formatted_as_a_formatter_would(
    to: str, change: Report, report_for: Callable[[str], Report]
) -> None:
    report = report_for(to)
    for phase in report["phases"].values():
        if phase["answer"]["verdict"] == "faster":
            phase["answer"]["best"]["config"].update(change)
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--diff", "-"]
    done = subprocess.run(
        command, input=export(report, to), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


NASTY = "x\"\"\"\n'''\rimport os; os.abort()\x0c\x85\u2028import os #\\ \ud800 {0} %s \N{SNOWMAN}"


@pytest.mark.parametrize("to", SCRIPTS)
def test_text_from_a_report_never_becomes_code(
    to: str, report_for: Callable[[str], Report]
) -> None:
    clean, dirty = report_for(to), copy.deepcopy(report_for(to))
    dirty["target"]["spec"] = dirty["run_dir"] = NASTY
    dirty["environment"].update(device_name=NASTY, torch=NASTY, autocompile=NASTY)
    dirty["target"]["choices"]["optimizer"] = NASTY
    for phase in dirty["phases"].values():
        phase["answer"]["reason"] = NASTY
    text = export(dirty, to)
    tree = ast.parse(export(clean, to))
    assert ast.dump(ast.parse(text)) == ast.dump(tree)
    shapes = []
    for name in ("plain", NASTY):
        dirty["environments"] = {name: {"torch": name, "python_path": name}}
        for phase in dirty["phases"].values():
            if phase["answer"]["verdict"] == "faster":
                phase["answer"]["best"]["config"]["environment"] = name
        text += export(dirty, to)
        shapes.append(
            [type(node).__name__ for node in ast.parse(export(dirty, to)).body]
        )
    assert shapes[0] == shapes[1]
    assert text.isascii()


# As a string, as an expression, as a name in quotes, and as the name of a thing to import or call.
CODE = ['os.abort()", os.abort(), "', "os.abort()", "os:abort", "abort"]


DAMAGE = (KeyError, TypeError, ValueError, AttributeError)


def leaves(data: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the values of a report are, and the names of its mappings."""
    if isinstance(data, (dict, list)) and data:
        for key in data if isinstance(data, dict) else range(len(data)):
            yield (*place, key)
            yield from leaves(data[key], (*place, key))


def edited(report: Report, place: tuple[Any, ...], text: str, is_key: bool) -> Report:
    """A report with text in place of a value, or of its name; what is beside it is shared."""
    copied = copy.copy(report)
    *above, last = place
    inner: Any = copied
    for key in above:
        inner[key] = copy.copy(inner[key])
        inner = inner[key]
    if is_key and isinstance(inner, dict):
        inner[text] = inner.pop(last)
    else:
        inner[last] = text
    return copied


def words_of_code(text: str) -> set[str]:
    """Names that code uses: what stands in strings and comments is none of them.

    A class of torch.optim and the names of its arguments may come from a report.
    """
    found = set()
    for node in ast.walk(ast.parse(text)):
        is_optimizer = (
            isinstance(node, ast.Attribute) and ast.unparse(node.value) == "torch.optim"
        )
        for field in ("id", "attr", "name", "asname", "module"):
            name = None if is_optimizer else getattr(node, field, None)
            found |= set(name.split(".")) if isinstance(name, str) else set()
    return found


def test_no_value_and_no_name_in_a_report_becomes_code(
    rl: Report, plain: Report
) -> None:
    stepped = with_fused_step(copy.deepcopy(plain))
    frozen = copy.deepcopy(plain)
    change_config(frozen, "forward", freezing=True)
    accepted = dict.fromkeys(SCRIPTS, 0)
    for report in (rl, plain, stepped, frozen):
        for phase in report["phases"].values():
            phase |= {"trials": [], "settings": []}  # no export reads them
        for place in leaves(
            {key: report[key] for key in ("target", "phases", "environment")}
        ):
            for text, is_key in itertools.product(CODE, (False, True)):
                with contextlib.suppress(AutocompileError, *DAMAGE):
                    read = typed(edited(report, place, text, is_key))
                    for to in SCRIPTS:
                        with contextlib.suppress(AutocompileError, *DAMAGE):
                            written = exporting.export(read, to)
                            found = words_of_code(written) & {"os", "abort"}
                            assert not found, (to, place, text)
                            accepted[to] += 1
    assert min(accepted.values()) > 100, accepted


@pytest.mark.parametrize("value", ["ATEN,TRITON", 1.5, -3, None, True])
@pytest.mark.parametrize("to", ["python", "accelerate"])
def test_option_values_survive_as_they_are(to: str, value: Any, plain: Report) -> None:
    change_config(plain, "forward", mode="default", options={"key": value})
    calls = [node for node in ast.walk(ast.parse(export(plain, to)))]
    given = [
        node
        for node in calls
        if isinstance(node, ast.keyword) and node.arg == "options"
    ]
    assert [ast.literal_eval(node.value) for node in given] == [{"key": value}]


OPTIMIZER = {
    "class": "Adam",
    "arguments": {"lr": 3e-4, "amsgrad": True},
    "lr": 3e-4,
}
FUSED = {"backend": "eager", "optimizer": "fused"}


def with_fused_step(report: Report, **optimizer: Any) -> Report:
    """The forward pass in another layout, and the step of the user's own optimizer fused."""
    change_config(report, "forward", memory_format="channels_last")
    step = copy.deepcopy(report["phases"]["forward"])
    step["answer"]["best"]["config"] = dict(FUSED)
    step["answer"]["batch_size"] = None
    report["phases"]["optimizer_step"] = step
    report["target"]["optimizer"] = {**OPTIMIZER, **optimizer}
    report["target"]["choices"]["optimizer"] = "get_optimizer() of the target"
    return report


def test_python_is_the_lines_that_a_person_would_write(plain: Report) -> None:
    lines = export(with_fused_step(plain), "python").splitlines()
    assert [line for line in lines if line and not line.startswith("#")] == [
        "model = model.to(memory_format=torch.channels_last)",
        'model = torch.compile(model, mode="max-autotune")',
        "optimizer = torch.optim.Adam(model.parameters(), lr=0.0003, amsgrad=True, fused=True)",
        "from autocompile.runtime.optimizers import follow_state_dicts",
        "follow_state_dicts(optimizer)",
    ]
    assert [line for line in lines if line.startswith("#")] == [
        "# forward: 1.41x [1.39, 1.43] as fast as eager at batch size 16, confirmed in 3 fresh "
        "processes",
        "# optimizer_step: 1.41x [1.39, 1.43] as fast as eager, confirmed in 3 fresh processes",
        "# A fused step takes moments as plain memory, those of a checkpoint too: as the weights lie.",
    ]
    assert use_line(plain) == "autocompile export last --to python"
    del plain["phases"]["optimizer_step"]
    lines = export(plain, "python").splitlines()
    use = use_line(plain)
    assert use == "; ".join(line for line in lines if line and not line.startswith("#"))


def test_an_optimizer_of_which_the_run_cannot_tell_how_it_is_made_is_changed_as_it_is(
    plain: Report,
) -> None:
    report = with_fused_step(plain, **{"class": None, "arguments": None})
    change = "for group in optimizer.param_groups:\n    group.update(foreach=False, fused=True)"
    assert change in export(report, "python") and "torch.optim" not in export(
        report, "python"
    )
    assert use_line(report) == "autocompile export last --to python"
    for name in ("Adam(); import os", "", "a.b"):
        report["target"]["optimizer"] = {**OPTIMIZER, "class": name}
        assert "torch.optim" not in export(report, "python")


def test_a_phase_in_which_nothing_is_compiled_replaces_no_method(
    rl: Report, plain: Report
) -> None:
    own = {**EAGER, "memory_format": "channels_last"}
    rl["phases"]["forward_exploration"]["answer"]["best"]["config"] = own
    plain["phases"]["forward"]["answer"]["best"]["config"] = own
    assert "_forward" not in export(rl, "python").replace('"forward', "")
    assert "torch.compile(" not in export(plain, "python")
    assert "model = model.to(memory_format=torch.channels_last)" in export(
        plain, "python"
    )


@pytest.mark.parametrize("to", SCRIPTS)
def test_what_was_not_confirmed_says_so_in_its_first_line(
    to: str, report_for: Callable[[str], Report]
) -> None:
    report = report_for(to)
    (name, phase), *_ = report["phases"].items()
    assert "NOT CONFIRMED" not in export(report, to) and unconfirmed(report) == []
    phase["answer"]["best"]["confirmed_processes"] = 2
    assert export(report, to).startswith(
        f"# NOT CONFIRMED: {name} was measured in 2 fresh processes only"
    )
    phase["answer"]["best"]["confirmed_processes"] = 0
    (said,) = unconfirmed(report)
    assert said.startswith(f"NOT CONFIRMED: {name} was measured in the search only")
    set_verdict(phase, "keep_eager")
    assert unconfirmed(report) == []


def _comments(text: str) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT]


@pytest.mark.parametrize(
    "name", [n for n, known in BACKENDS.items() if known.registered_by]
)
def test_python_imports_the_package_of_each_backend_that_has_one(
    name: str, plain: Report
) -> None:
    change_config(plain, "forward", backend=name, mode="default")
    assert f"import {BACKENDS[name].registered_by}  #" in export(plain, "python")


def test_what_plain_torch_cannot_do_is_a_line_of_ours(plain: Report) -> None:
    for change in ({"scope": "regional"}, {"scope": "full", "freezing": True}):
        change_config(plain, "forward", **change)
        text = export(plain, "python")
        assert (
            "# The file: autocompile export ppo_breakout-0003 -o tuned.json\n" in text
        )
        assert text.endswith(
            'autocompile.apply(model, "tuned.json", "forward", batch_size=16)\n'
        )
    for to in STACKS:
        with pytest.raises(ExportError, match="computes no gradients"):
            export(plain, to)


@pytest.mark.parametrize(
    ("torch", "said"),
    [
        ("2.13.0+cpu", "dynamic=False, recompile_limit=32, isolate_recompiles=True)\n"),
        (
            "2.11.0",
            'autocompile.apply(model, "tuned.json", "forward", batch_size=16)\n',
        ),
    ],
)
def test_a_limit_is_of_its_own_compile_where_torch_knows_that(
    plain: Report, torch: str, said: str
) -> None:
    plain["environment"]["torch"] = torch
    change_config(plain, "forward", mode="default", dynamic=False, recompile_limit=32)
    assert export(plain, "python").endswith(said)


@pytest.mark.parametrize("to", STACKS)
def test_model_stacks_refuse_what_is_no_forward_pass_and_point_elsewhere(
    to: str, rl: Report, plain: Report
) -> None:
    plain["phases"] = {"optimizer_step": SAMPLE["phases"]["optimizer_step"]}
    for report, words, form, other in (
        (rl, "no form for an RLModule", to, "rllib"),
        (plain, "forward pass", to, "python"),
        (plain, "not an RLModule", "rllib", "python"),
    ):
        with pytest.raises(ExportError, match=words) as caught:
            export(report, form)
        assert caught.value.hint == f"autocompile export ppo_breakout-0003 --to {other}"


@pytest.mark.parametrize("to", STACKS)
def test_model_stacks_fall_back_to_the_training_step(to: str, plain: Report) -> None:
    plain["phases"]["train_step"] = copy.deepcopy(plain["phases"]["forward"])
    set_verdict(plain["phases"]["forward"], "failed")
    text = export(plain, to)
    assert "# train_step: 1.41x" in text
    assert "compiles the forward pass and its backward only" in " ".join(
        _comments(text)
    )


def test_rllib_reads_the_settings_of_every_batch_size(rl: Report) -> None:
    step = copy.deepcopy(rl["phases"]["forward_exploration"])
    rl["phases"]["train_step"] = step  # RLlib has a step of its own
    written = json.loads(export(rl, "json"))["phases"]["forward_exploration"]
    assert {c["batch_size"]: c["config"] for c in written} == {
        1: {"backend": "inductor"},
        16: {"backend": "inductor", "mode": "max-autotune"},
    }
    text = export(rl, "rllib")
    assert [
        line for line in text.splitlines() if line and not line.startswith("#")
    ] == [
        "from autocompile.rllib import tuned",
        'config = tuned(config, "tuned.json")',
    ]
    assert "# The file: autocompile export ppo_breakout-0003 -o tuned.json\n" in text
    assert "forward_exploration: 1.41x" in text and "train_step" not in text
    rl["target"]["own_batch_size"] = {"forward_exploration": 64}
    comments = " ".join(_comments(export(rl, "rllib")))
    assert "own batch size 64 was not measured" in comments
    rl["phases"] = {"train_step": step}
    with pytest.raises(ExportError, match="no form for the phases train_step"):
        export(rl, "rllib")


def test_no_optimizer_is_made_up_for_a_target_that_names_none(rl: Report) -> None:
    report = rl
    report["target"] |= {"optimizer": {"class": "Adam", "arguments": {}, "lr": 0.001}}
    own, ours = (
        {"choices": c} for c in ({"optimizer": "get_optimizer() of the target"}, {})
    )
    fused = CompileConfig.from_dict(FUSED)

    def line(of_target: Report) -> str:
        facts = facts_of(typed({**report, "target": report["target"] | of_target}))
        (statement,) = of_optimizer("optimizer_step", fused, facts)
        return statement.code

    assert line(own) == "optimizer = torch.optim.Adam(model.parameters(), fused=True)"
    assert line(ours).startswith("for group in optimizer.param_groups:\n")


def test_what_was_measured_of_rllibs_updates_is_exported_for_rllib_only(
    rl: Report,
) -> None:
    update = copy.deepcopy(rl["phases"]["forward_exploration"])
    rl["phases"]["learner_update"] = update
    assert "# learner_update: 1.41x" in export(rl, "rllib")
    text = export(rl, "python")
    assert "# learner_update: 1.41x" in text and "LEARNER_UPDATE" not in text
    rl["phases"] = {"learner_update": update}
    assert use_line(rl).startswith("from autocompile.rllib import tuned")
    with pytest.raises(ExportError, match="no form in plain torch") as caught:
        export(rl, "python")
    assert caught.value.hint == "autocompile export ppo_breakout-0003 --to rllib"


def test_the_code_in_a_line_is_of_the_reports_best(rl: Report, plain: Report) -> None:
    assert to_paste(plain) == {"forward": 'torch.compile(model, mode="max-autotune")'}
    for report in (rl, plain):
        for name, choice in choices(typed(report)).items():
            answer = report["phases"][name]["answer"]
            if choice.config:
                assert choice.config.to_dict() == answer["best"]["config"]
                assert choice.batch_size == answer["batch_size"]
    set_verdicts(plain, "keep_eager")
    assert to_paste(plain) == {}
    set_verdicts(plain, "failed")
    assert to_paste(plain) == {}


def test_use_line_for_rllib_reads_the_file(rl: Report) -> None:
    line = 'from autocompile.rllib import tuned; config = tuned(config, "tuned.json")'
    use = f"{line}     after    autocompile export mine -o tuned.json"
    assert use_line(rl, "mine") == use
    change_config(rl, "forward_exploration", memory_format="channels_last")
    assert use_line(rl, "mine") == use
    rl["phases"] = {"train_step": rl["phases"]["forward_exploration"]}
    assert "autocompile.rllib" not in use_line(rl)  # RLlib has a step of its own


def test_use_line_sets_nothing_of_the_process_for_one_of_two_phases(
    plain: Report,
) -> None:
    phases = plain["phases"]
    phases["optimizer_step"] = copy.deepcopy(phases["forward"])
    set_verdict(phases["optimizer_step"], "keep_eager")
    change_config(plain, "forward", backend="eager", mode="default", threads=1)
    assert use_line(plain).startswith("autocompile export last --to python")
    assert "threads or precision" in export(plain, "python")
    set_verdict(phases["optimizer_step"], "failed")  # it asks for nothing
    assert use_line(plain) == "torch.set_num_threads(1)"
    del phases["optimizer_step"]
    assert use_line(plain) == "torch.set_num_threads(1)"


ELSEWHERE = {"torch": "2.8.0+cpu", "python_path": "/somewhere/ipex/bin/python"}


def test_evidence_names_the_torch_of_another_interpreter(plain: Report) -> None:
    plain["environments"] = {"ipex": ELSEWHERE}
    change_config(plain, "forward", environment="ipex")
    for to in STACKS:
        text = " ".join(_comments(export(plain, to)))
        assert "torch 2.8.0+cpu on AMD EPYC" in text and "environment ipex" in text
        assert "2.13.0" not in text
    text = " ".join(_comments(export(plain, "accelerate")))
    assert "WARNING" in text and "environment='ipex'" in text


def test_python_imports_what_is_of_another_interpreter_after_refusing_the_wrong_one(
    plain: Report,
) -> None:
    plain["environments"] = {"ipex": ELSEWHERE}
    change_config(plain, "forward", environment="ipex", backend="ipex", mode="default")
    text = export(plain, "python")
    assert text.index("assert torch.") < text.index(
        "import intel_extension_for_pytorch"
    )
    del plain["environments"]["ipex"]
    with pytest.raises(ExportError, match="has no form in plain torch"):
        export(plain, "python")


def test_what_a_package_reads_when_it_starts_is_set_before_it_is_imported(
    plain: Report,
) -> None:
    change_config(plain, "forward", backend="zentorch", mode="default")
    text = export(plain, "python")
    set_it = 'import os\nos.environ.setdefault("ZENDNNL_MATMUL_WEIGHT_CACHE", "0")\nimport zentorch '
    assert set_it in text and 'backend="zentorch"' in text


def test_phases_of_different_interpreters_have_no_script(plain: Report) -> None:
    plain["environments"] = {"ipex": ELSEWHERE}
    plain["phases"]["train_step"] = copy.deepcopy(plain["phases"]["forward"])
    change_config(plain, "forward", environment="ipex")
    with pytest.raises(ExportError, match="different interpreters") as caught:
        export(plain, "python")
    assert "forward: ipex" in str(caught.value)
    assert "--to json" in use_line(plain)
    found = json.loads(export(plain, "json"))
    assert found["interpreters"] == {"ipex": ELSEWHERE["python_path"]}


def test_accelerate_warns_that_its_regions_are_others(plain: Report) -> None:
    change_config(plain, "forward", scope="regional")
    text = export(plain, "accelerate")
    assert "use_regional_compilation=True" in text
    assert "only entries of an nn.ModuleList as blocks" in " ".join(_comments(text))
    change_config(plain, "forward", scope="full")
    assert "WARNING" not in export(plain, "accelerate")


def test_accelerate_is_given_no_backend_that_it_has_no_name_for(plain: Report) -> None:
    change_config(plain, "forward", backend="openvino_onnx_train", mode="default")
    with pytest.raises(
        ExportError, match="Accelerate has no backend openvino_onnx_train"
    ):
        export(plain, "accelerate")


def test_use_line_is_a_torch_compile_call(plain: Report) -> None:
    phase = plain["phases"]["forward"]
    phase["answer"]["best"]["config"].update(
        mode="default", options={"a": False}, dynamic=True
    )
    for name, called, compiled in (
        ("forward", "model", "model"),
        ("optimizer_step", "optimizer_step", "optimizer.step"),
        ("train_step", "train_step", "train_step"),
    ):
        scope = "step" if name == "train_step" else "model"
        phase["answer"]["best"]["config"]["scope"] = scope
        plain["phases"] = {name: phase}
        line = f'{called} = torch.compile({compiled}, options={{"a": False}}, dynamic=True)'
        assert use_line(plain) == line


def test_a_compiled_adam_step_comes_with_what_it_cannot_bear(plain: Report) -> None:
    phase = plain["phases"]["forward"]
    phase["answer"]["best"]["config"]["scope"] = "model"
    plain["phases"] = {"optimizer_step": phase}
    for name, is_said in (("AdamW", True), ("SGD", False)):
        plain["target"]["optimizer"] = {"class": name, "arguments": {"lr": 0.1}}
        plain["target"]["choices"]["optimizer"] = "get_optimizer() of the target"
        assert ("begin a warm-up above 0" in export(plain, "python")) is is_said


@pytest.mark.parametrize("to", ["rllib", "python"])
def test_use_line_says_when_there_is_nothing_to_compile(
    to: str, report_for: Callable[[str], Report]
) -> None:
    report = report_for(to)
    set_verdicts(report, "keep_eager")
    assert use_line(report).startswith("leave it uncompiled")
    set_verdicts(report, "failed")
    limits = "nothing to use: no setting that works keeps the limits"
    assert use_line(report) == limits
    for phase in report["phases"].values():
        for trial in phase["trials"]:
            trial["outcome"] = "crashed"
    assert use_line(report) == "nothing to use: no setting worked"


def test_the_command_offers_every_format() -> None:
    assert get_args(Format) == FORMATS
    assert all(name in (Result.export.__doc__ or "") for name in FORMATS)


def of_two_phases(report: Report, **step: Any) -> Report:
    """The forward pass kept in eager mode, and another setting for the optimizer's step."""
    found = with_fused_step(copy.deepcopy(report))
    set_verdict(found["phases"]["forward"], "keep_eager")
    own = {**FUSED, **step}
    found["phases"]["optimizer_step"]["answer"]["best"]["config"] = own
    return found


def said_of(text: str) -> str:
    return " ".join(_comments(text))


PROCESS_WIDE = {"threads": 1, "precision": "high"}


def test_every_field_of_a_process_is_tried_on_every_stack() -> None:
    fields = {d.name for d in DIMENSIONS if d.applied == "process"}
    assert fields == set(PROCESS_WIDE)


@pytest.mark.parametrize("field", PROCESS_WIDE)
@pytest.mark.parametrize("to", ["python", *STACKS])
def test_what_an_optimizer_step_wants_of_the_process_is_in_the_text_or_in_the_file(
    to: str, field: str, plain: Report
) -> None:
    value = PROCESS_WIDE[field]
    report = of_two_phases(plain, **{field: value})
    text = export(report, to)
    if to in ("lightning", "transformers"):
        # Their callback reads the file, and sets it while the optimizer steps.
        entries = json.loads(export(report, "json"))["phases"]["optimizer_step"]
        (written,) = (e for e in entries if e["batch_size"] is None)
        assert written["config"][field] == value and '"tuned.json"' in text
        return
    (dimension,) = (d for d in DIMENSIONS if d.name == field)
    assert dimension.line is not None
    assert dimension.line(value) in text.splitlines()
    # The forward pass was measured without it.
    assert "Use one of 2" in said_of(text) and "threads or precision" in said_of(text)
    assert "In place of what is above:" in text


@pytest.mark.parametrize("field", PROCESS_WIDE)
def test_phases_that_want_the_same_of_the_process_are_one_program_for_accelerate(
    field: str, plain: Report
) -> None:
    value = PROCESS_WIDE[field]
    report = with_fused_step(copy.deepcopy(plain))
    for phase in ("forward", "optimizer_step"):
        change_config(report, phase, **{field: value})
    text = export(report, "accelerate")
    (dimension,) = (d for d in DIMENSIONS if d.name == field)
    assert dimension.line is not None
    assert text.splitlines().count(dimension.line(value)) == 1
    assert "Use one of" not in said_of(text) and "fused=True" in text


def test_accelerate_carries_each_field_of_a_setting_or_names_it(plain: Report) -> None:
    other: dict[str, Any] = {
        "mode": "max-autotune", "options": {"key": 1}, "fullgraph": True, "dynamic": True,
        "recompile_limit": 32, "scope": "step", "memory_format": "channels_last",
        "optimizer": "fused", "threads": 1, "precision": "high", "autocast": "bfloat16",
        "environment": "ipex", "ddp": "static_graph", "fsdp": "kept",
    }  # fmt: skip
    refused = {"backend", "freezing"}  # by a sentence of their own, above
    assert set(other) | refused == {d.name for d in DIMENSIONS}
    plain["environments"] = {"ipex": ELSEWHERE}
    plain["phases"] = {"train_step": plain["phases"]["forward"]}
    change_config(plain, "train_step", mode="default")
    whole = export(plain, "accelerate")
    bare = [line for line in whole.splitlines() if not line.startswith("#")]
    for field, value in other.items():
        report = copy.deepcopy(plain)
        change_config(report, "train_step", **{field: value})
        text = export(report, "accelerate")
        is_named = f"{field}={value!r}" in said_of(text)
        code = [line for line in text.splitlines() if not line.startswith("#")]
        is_there = code != bare
        assert is_named != is_there, (field, text)


def test_a_setting_that_a_stack_does_not_use_is_named(plain: Report) -> None:
    report = with_fused_step(copy.deepcopy(plain))
    report["phases"]["train_step"] = copy.deepcopy(report["phases"]["forward"])
    for to in STACKS:
        text = said_of(export(report, to))
        assert "NOT USED: forward: 1.41x" in text
        assert "NOT USED: optimizer_step: 1.41x" in text
        assert "fused" not in export(report, to)


@pytest.mark.parametrize("to", ["lightning", "transformers"])
def test_a_callback_is_given_no_step_that_is_compiled_as_a_whole(
    to: str, plain: Report
) -> None:
    plain["phases"] = {"train_step": plain["phases"]["forward"]}
    change_config(plain, "train_step", scope="step")
    with pytest.raises(ExportError, match="compiles the whole step"):
        export(plain, to)
