"""The whole export of several phases, pasted into a program and run, each alternative of it too.

Of every two phases of a module; tests/export/test_export_runs.py does it for an RLModule.
"""

from __future__ import annotations

import ast
import copy
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from made_records import Run, run_of
from pasting import programs_in
from torch._dynamo.utils import counters

from autocompile import export as exporting
from autocompile.export.check import exported_code
from autocompile.report.build import build_report
from autocompile.settings.config import CompileConfig
from autocompile.store.report import Report as TypedReport

Report = dict[str, Any]
SAMPLE = json.loads(
    (Path(__file__).parents[1] / "data" / "report.json").read_text("utf-8")
)
X = torch.linspace(-1, 1, 2 * 3 * 6 * 6).reshape(2, 3, 6, 6)


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Conv2d(3, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(self.inner(x))


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(2))
        self.drop = torch.nn.Dropout(0.0)  # so that train() and eval() are something

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return torch.as_tensor(self.drop(x))


# What a user's program has. Where the export gives the model a name for a phase, it calls that.
PROGRAM = """
torch.manual_seed(0)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

def train(phase, x):
    optimizer.zero_grad()
    loss = globals().get(f"{phase}_model", model)(x).square().mean()
    loss.backward()
    globals().get("optimizer_step", optimizer.step)()
    return loss.detach()

def train_step(x):
    return train("train_step", x)

def step(x):
    if is_training:
        return train("step", x)
    with torch.no_grad():
        return globals().get("inference_step_model", model)(x)
"""

AOT = {"backend": "aot_eager"}
OTHER = {"backend": "aot_eager", "fullgraph": True}
LAID_OUT = {"backend": "aot_eager", "memory_format": "channels_last"}
ONE_THREAD = {"backend": "aot_eager", "threads": 1}
BY_US = {"backend": "aot_eager", "scope": "regional"}
WHOLE = {"backend": "aot_eager", "scope": "step"}
FUSED = {"backend": "eager", "optimizer": "fused"}
BOTH = {"backend": "aot_eager", "optimizer": "fused"}
FOR_LOOP = {"backend": "eager", "optimizer": "for_loop"}
Setting = dict[str, Any] | None  # None: eager mode is as fast

OF_A_MODEL: tuple[Setting, ...] = (AOT, OTHER, LAID_OUT, ONE_THREAD, BY_US, None)
SETTINGS: dict[str, tuple[Setting, ...]] = {
    "forward": OF_A_MODEL,
    "train_step": (*OF_A_MODEL, WHOLE, BOTH),
    "optimizer_step": (AOT, FUSED, FOR_LOOP, None),
    "step": (AOT, OTHER, BY_US, WHOLE, BOTH),
    "inference_step": (AOT, OTHER, LAID_OUT, WHOLE),
}
PAIRS = [
    (first, second)
    for first, second in itertools.combinations(SETTINGS, 2)
    # A target has one step of its own, which trains or does not.
    if {first, second} != {"step", "inference_step"}
]


def some_of(first: str, second: str, also_alike: bool) -> list[tuple[Setting, Setting]]:
    """Settings of two phases: each beside one of the other phase, and the first beside its like.

    With ``also_alike`` each is also beside its like.
    """
    ours, theirs = SETTINGS[first], SETTINGS[second]
    most = max(len(ours), len(theirs))
    unlike = [(ours[n % len(ours)], theirs[(n + 1) % len(theirs)]) for n in range(most)]
    alike = [(ours[n % len(ours)], theirs[n % len(theirs)]) for n in range(most)]
    return unlike + (alike if also_alike else alike[:1])


def report_of(settings: dict[str, Setting]) -> Report:
    """The report of a module for which these settings won."""
    report: Report = copy.deepcopy(SAMPLE)
    adam = {"class": "Adam", "arguments": {"lr": 0.01}, "lr": 0.01}
    report["target"] = {
        "spec": "net.py",
        "kind": "functions",
        "optimizer": adam,
        "choices": {"optimizer": "get_optimizer() of the target"},
    }
    report["phases"] = {}
    for name, setting in settings.items():
        phase = copy.deepcopy(SAMPLE["phases"]["forward_exploration"])
        answer = phase["answer"]
        answer["verdict"] = "keep_eager" if setting is None else "faster"
        answer["batch_size"] = None
        config = CompileConfig(**(setting or {"backend": "eager"}))
        answer["best"]["config"] = config.to_dict()
        phase["other_sizes"] = []
        report["phases"][name] = phase
    return report


def exported(settings: dict[str, Setting], to: str = "python") -> str:
    typed: TypedReport = TypedReport.from_dict(report_of(settings))
    return exporting.export(typed, to)


@pytest.fixture(autouse=True)
def _own_process_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)  # where tuned.json is
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    torch._dynamo.reset()
    counters.clear()
    yield
    torch.set_num_threads(threads)


def program(code: str, is_training: bool) -> dict[str, Any]:
    """The names of a user's program that has run the code."""
    names: dict[str, Any] = {"torch": torch, "Net": Net, "is_training": is_training}
    exec(PROGRAM, names)
    exec(code, names)
    return names


def work(names: dict[str, Any], phases: tuple[str, ...]) -> list[torch.Tensor]:
    """What each phase gives, twice, then the weights."""
    found = []
    for _ in range(2):
        for phase in phases:
            names["model"].train(phase != "forward")
            if phase == "forward":
                found.append(names.get("forward_model", names["model"])(X))
            elif phase != "optimizer_step":
                found.append(names[phase.removeprefix("inference_")](X))
            else:
                for parameter in names["model"].parameters():
                    parameter.grad = torch.ones_like(parameter)
                names.get("optimizer_step", names["optimizer"].step)()
    found += [p.detach().clone() for p in names["model"].parameters()]
    return [each.detach() for each in found]


@pytest.mark.filterwarnings("ignore::UserWarning")  # another machine than the report's
@pytest.mark.parametrize(
    "also_alike", [False, pytest.param(True, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_the_whole_export_of_two_phases_runs_and_leaves_a_model_that_works(
    first: str, second: str, also_alike: bool, tmp_path: Path
) -> None:
    is_training = "step" in (first, second)
    untouched = work(program("", is_training), (first, second))
    ran: set[str] = set()
    for settings in some_of(first, second, also_alike):
        chosen = dict(zip((first, second), settings, strict=True))
        text = exported(chosen)
        (tmp_path / "tuned.json").write_text(exported(chosen, "json"))
        for code in programs_in(text):
            statements = ast.unparse(ast.parse(code))
            # An alternative of one pair of settings is often the program of another; what reads
            # tuned.json does what that says.
            if statements in ran and "tuned.json" not in statements:
                continue
            ran.add(statements)
            torch._dynamo.reset()
            torch.set_num_threads(2)
            names = program(code, is_training)
            modules = [
                names["model"],
                *(names[n] for n in names if n.endswith("_model")),
            ]
            for module in modules:
                assert isinstance(module, torch.nn.Module), text
                assert len(list(module.parameters())) == len(module.state_dict()) == 4
                assert not module.train().eval().training
            found = work(names, (first, second))
            for ours, eagers in zip(found, untouched, strict=True):
                torch.testing.assert_close(ours, eagers, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_nothing_is_compiled_twice_and_no_line_is_said_twice(
    first: str, second: str
) -> None:
    for settings in itertools.product(SETTINGS[first], SETTINGS[second]):
        chosen = dict(zip((first, second), settings, strict=True))
        for code in programs_in(exported(chosen)):
            lines = [ast.unparse(node) for node in ast.parse(code).body]
            assert len(lines) == len(set(lines)), code
            names = [line.split(" = ")[0] for line in lines if "torch.compile(" in line]
            assert len(names) == len(set(names)), code
            # What is called is compiled from what the user's program has.
            assert not any(
                f"torch.compile({name})" in code for name in names if "_model" in name
            )


def test_phases_that_compile_the_model_differently_have_a_name_each_and_share_weights() -> (
    None
):
    text = exported({"forward": AOT, "train_step": OTHER})
    assert 'forward_model = torch.compile(model, backend="aot_eager")' in text
    assert (
        'train_step_model = torch.compile(model, backend="aot_eager", fullgraph=True)'
        in text
    )
    assert "call forward_model for forward, train_step_model for train_step" in _flat(
        text
    )
    names = program(text, is_training=False)
    work(names, ("forward", "train_step"))
    assert counters["stats"]["unique_graphs"] >= 2, "both are compiled"
    one, other = names["forward_model"], names["train_step_model"]
    assert list(map(id, one.parameters())) == list(map(id, other.parameters()))
    assert list(names["model"].state_dict()) == list(Net().state_dict())


def test_a_phase_that_is_as_fast_in_eager_mode_calls_the_model_itself() -> None:
    text = exported({"forward": AOT, "train_step": None})
    assert "forward_model = torch.compile(" in text and "\nmodel = " not in text
    assert "call forward_model for forward, and model itself for train_step" in _flat(
        text
    )


def test_equal_settings_are_said_once() -> None:
    text = exported({"forward": AOT, "train_step": AOT})
    assert text.count("torch.compile(") == 1 and "In place of" not in text
    assert 'model = torch.compile(model, backend="aot_eager")' in text.splitlines()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"forward": ONE_THREAD, "train_step": AOT}, "threads or precision"),
        ({"forward": AOT, "train_step": LAID_OUT}, "the layout of the weights"),
        ({"train_step": BOTH, "optimizer_step": FOR_LOOP}, "optimizer"),
    ],
)
def test_phases_that_want_one_object_in_two_states_are_alternatives(
    settings: dict[str, Setting], said: str
) -> None:
    text = exported(settings)
    assert f"They differ in {said}" in _flat(text)
    assert len(programs_in(text)) == 2
    first, second = programs_in(text)
    assert ast.unparse(ast.parse(first)) != ast.unparse(ast.parse(second))
    # Pasted as it is, it is the first alternative.
    assert ast.unparse(ast.parse(text)) == ast.unparse(ast.parse(first))


def test_a_step_that_leaves_the_optimizer_as_it_is_takes_the_one_that_steps_fastest() -> (
    None
):
    text = exported({"train_step": AOT, "optimizer_step": FUSED})
    assert len(programs_in(text)) == 1
    names = program(text, is_training=False)
    work(names, ("train_step",))
    assert names["optimizer"].param_groups[0]["fused"]


def _flat(text: str) -> str:
    """The comments of a text as one line."""
    return " ".join(
        line.removeprefix("#").strip()
        for line in text.splitlines()
        if line.startswith("#")
    )


RUN = {
    "request": {"target": "net.py"},
    "target": {"kind": "functions", "choices": {}},
    "environment": {"device": "cpu", "torch": torch.__version__},
    "phases": ["forward", "train_step"],
}


def test_the_run_checks_each_phase_by_its_lines_of_the_whole_export() -> None:
    records = []
    for phase, config in (("forward", AOT), ("train_step", OTHER)):
        run = Run(phase)
        trial = run.search(CompileConfig(**config), 1.5)
        run.race(trial, 1.5, 1.5, 1.5)
        records += run.records
    codes = exported_code(build_report(run_of(RUN), records, "runs/net-0001"))
    whole = exported({"forward": AOT, "train_step": OTHER})
    assert list(codes) == [("forward", 4), ("train_step", 4)]
    for (phase, _), exported_of in codes.items():
        assert exported_of.code in whole.splitlines()
        assert exported_of.called == f"{phase}_model"
        assert exported_of.settings.phases[phase][0].processes == 3
        names = program(exported_of.code, is_training=False)
        assert isinstance(names[exported_of.called], torch.nn.Module)


@pytest.mark.parametrize(
    ("speedup", "limits", "verdict"),
    [
        (1.5, {}, "faster"),
        (0.9, {"memory_bytes": 1_500_000_000}, "within_limits"),
        (0.9, {}, "keep_eager"),
        (0.9, {"memory_bytes": 500_000_000}, "failed"),
    ],
)
def test_the_run_checks_what_its_report_recommends_and_nothing_else(
    speedup: float, limits: dict[str, float], verdict: str
) -> None:
    run = Run("forward")
    run.records[0].peak_memory_bytes = 2 * 10**9
    trial = run.search(CompileConfig(**AOT), speedup, peak_memory_bytes=10**9)
    run.race(trial, speedup, speedup, speedup)
    request = {"target": "net.py", "limits": limits}
    about = run_of({**RUN, "request": request, "phases": ["forward"]})
    report = build_report(about, run.records, "runs/net-0001")
    answer = report.phases["forward"].answer
    assert answer.verdict == verdict
    recommended = [("forward", 4)] if answer.changes_something else []
    assert list(exported_code(report)) == recommended
