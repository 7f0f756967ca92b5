"""The worker by hand, the probe of the environment, and what each exception means."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._dynamo.exc
from conftest import ROOT, TARGETS
from torch._dynamo import eval_frame
from torch._dynamo.backends.registry import register_backend

from autocompile.errors import UsageError
from autocompile.estimate.intervals import speedup
from autocompile.runtime import machine
from autocompile.settings.backends import DEFAULT_BACKENDS
from autocompile.settings.config import EAGER, CompileConfig
from autocompile.store.record import Outcome, Step
from autocompile.trial.inspect import environment, telemetry
from autocompile.trial.phases.side import Side
from autocompile.trial.process import worker
from autocompile.trial.process.failures import first_words, outcome_of, where_in
from autocompile.trial.tasks.steps import timed

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("_dynamo_as_it_was")
LIMITS = {"half_width": 0.5, "max_s": 0.1, "front_s": 0.1}


# --- by hand ------------------------------------------------------------------------------------


def a_trial(**changes: Any) -> dict[str, Any]:
    backend = changes.pop("backend", "aot_eager")
    request = {
        "kind": "trial",
        "number": 7,
        "target": str(TARGETS / "plain.py"),
        "phase": "forward",
        "config": CompileConfig(backend=backend).to_dict(),
        "batch_size": 4,
        "device": "cpu",
        "seed": 0,
        "limits": LIMITS,
    }
    return {**request, **changes}


def a_probe(**changes: Any) -> dict[str, Any]:
    request = {"kind": "probe", "target": str(TARGETS / "plain.py"), "device": "cpu", "seed": 0}
    return {**request, "batch_size": 4, "phases": None, "backends": None, **changes}


def by_hand(folder: Path, request: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """The steps in order and the result, as a user sees them on a terminal."""
    folder.mkdir(exist_ok=True)
    (folder / "request.json").write_text(json.dumps(request))
    command = [sys.executable, "-m", "autocompile.trial", str(folder)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environ, check=False
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"v"')]
    assert lines, done.stderr
    assert all(line["v"] == 1 and line["nonce"] == "" for line in lines)
    *steps, result = lines
    assert result["event"] == "result"
    assert {line["event"] for line in steps} <= {"step", "modules"}
    return [line["step"] for line in steps if line["event"] == "step"], result


def in_this_process(
    folder: Path, request: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> dict[str, Any]:
    """The same without the seconds that a new interpreter takes; gives the result."""
    folder.mkdir(exist_ok=True)
    (folder / "request.json").write_text(json.dumps(request))
    path = list(sys.path)
    capsys.readouterr()
    worker.run(str(folder), None, "")
    sys.path[:] = path
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], dict[str, Any]]:
    return by_hand(tmp_path_factory.mktemp("trial"), a_trial())


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], dict[str, Any]]:
    return by_hand(tmp_path_factory.mktemp("probe"), a_probe())


def test_a_trial_goes_through_the_steps_in_order(trial: tuple[list[str], dict[str, Any]]) -> None:
    steps, result = trial
    order = ["import", "build", "eager", "compile", "verify", "measure", "verify"]
    assert steps == order
    assert (result["outcome"], result["step"]) == ("ok", "exit")


def test_the_result_of_a_trial_holds_what_its_record_needs(
    trial: tuple[list[str], dict[str, Any]],
) -> None:
    _, result = trial
    assert set(result) >= {
        "measurement", "compile_s", "graphs", "graph_breaks", "recompiles", "detail", "notes",
        "weights_live", "peak_memory_bytes", "eager_peak_memory_bytes",
    }  # fmt: skip
    assert result["weights_live"] is True
    assert (result["graphs"], result["graph_breaks"], result["recompiles"]) == (1, 0, 0)
    parameters = 4 * (6 * 3 + 3 + 3)  # bytes
    assert result["peak_memory_bytes"] is None or result["peak_memory_bytes"] >= parameters


def test_the_times_of_a_trial_are_plausible(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # with more of them each waits for the others
    try:
        result = in_this_process(work / "trial", a_trial(limits={"half_width": 0.5}), capsys)
    finally:
        torch.set_num_threads(threads)
    measurement = result["measurement"]
    assert 8 <= len(measurement["eager_s"]) == len(measurement["compiled_s"])
    assert min(*measurement["eager_s"], *measurement["compiled_s"]) > 0
    assert min(measurement["calls"]) > 1
    assert 0.1 < speedup(measurement["eager_s"], measurement["compiled_s"]).value < 10
    assert result["compile_s"] > max(measurement["compiled_s"])
    assert 0 < result["reference_s"] < 1


def test_a_probe_describes_target_and_machine(probe: tuple[list[str], dict[str, Any]]) -> None:
    steps, result = probe
    assert steps == ["import", "build", "eager"]
    assert result["outcome"] == "ok"
    target = result["target"]
    assert target["kind"] == "functions" and target["description"] == "Net"
    assert target["parameters"] == 6 * 3 + 3
    assert target["phases"] == ["forward", "optimizer_step"]
    assert "fixed_batch_size" not in target and target["is_rl"] is False
    assert result["environment"]["torch"] == torch.__version__
    assert result["environment"]["device"] == "cpu"
    assert list(result["modes"]) == list(environment.modes(CPU))
    assert set(result["backends"]) == set(DEFAULT_BACKENDS)
    assert "aot_eager" in result["all_backends"]


def test_a_probe_learns_a_fixed_batch_size_and_backends_of_the_targets_own(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (TARGETS / "kernelbench.py").read_text("utf-8")
    own = "\n@torch._dynamo.register_backend\ndef mine(graph, inputs):\n    return graph\n"
    (work / "kb.py").write_text("import torch._dynamo\n" + text + own)
    names = ["mine", "nobodys", "eager"]
    result = in_this_process(
        work / "probe", a_probe(target=str(work / "kb.py"), backends=names), capsys
    )
    assert result["target"]["fixed_batch_size"] == 5
    assert set(result["backends"]) == {"mine", "nobodys"}
    assert result["backends"]["mine"] == ""
    assert "knows no backend of this name" in result["backends"]["nobodys"]


@pytest.mark.parametrize(
    ("text", "outcome", "step", "message", "where"),
    [
        ("1 / 0\n", "import_error", "import", "ZeroDivisionError: division by zero", ":1"),
        ("def get_model(): raise KeyError('no weights')\n",
         "runtime_error", "build", "KeyError: 'no weights'", ":1   def get_model"),
        ("import torch\nget_model = torch.nn.ReLU\ndef get_model():\n    return torch.nn.ReLU()\n"
         "def get_inputs(b):\n    raise ValueError('no data')\n",
         "runtime_error", "eager", "ValueError: no data", ":6"),
    ],
)  # fmt: skip
def test_an_error_of_the_users_code_has_its_outcome_step_words_and_line(
    work: Path,
    capsys: pytest.CaptureFixture[str],
    text: str,
    outcome: str,
    step: str,
    message: str,
    where: str,
) -> None:
    (work / "model.py").write_text(text)
    request = a_probe(target=str(work / "model.py"), phases=["forward"])
    result = in_this_process(work / "probe", request, capsys)
    assert (result["outcome"], result["step"], result["message"]) == (outcome, step, message)
    assert result["where"].startswith(f"model.py{where}")


def test_a_mistake_in_the_request_is_explained(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = in_this_process(work / "probe", a_probe(phases=["forward_exploration"]), capsys)
    assert result["message"] == "this target has no phase forward_exploration"
    assert result["explained"]["details"] == [
        "a functions has: forward, optimizer_step, train_step"
    ]


def test_a_request_of_a_newer_version_is_explained(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = in_this_process(work / "trial", a_trial(schema=2), capsys)
    assert (result["outcome"], result["step"]) == ("infrastructure", "import")
    assert "request.json has schema 2" in result["message"]
    assert "pip install --upgrade" in result["explained"]["hint"]


def test_why_nothing_was_captured_is_told(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (work / "model.py").write_text(
        "import torch\nclass Net(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.memory = torch.nn.LSTM(6, 3)\n"
        "    def forward(self, x): return self.memory(x)[0]\n"
        "def get_model(): return Net()\ndef get_inputs(b): return torch.randn(5, b, 6)\n"
    )
    with torch._dynamo.config.patch(allow_rnn=False):  # whatever was exported to ONNX before
        result = in_this_process(work / "trial", a_trial(target=str(work / "model.py")), capsys)
    assert (result["outcome"], result["step"]) == ("not_compiled", "verify"), result
    assert "everything ran in eager mode: Attempted to wrap RNN" in result["message"]


# --- environment --------------------------------------------------------------------------------


def test_the_modes_are_those_of_the_installed_torch() -> None:
    from torch._inductor import list_mode_options

    modes = environment.modes(CPU)
    assert set(modes) == set(list_mode_options()) >= set(modes.values())
    assert next(iter(modes)) == "default"


def test_what_a_mode_turns_on_is_what_the_installed_torch_says() -> None:
    from torch._inductor import list_mode_options

    for mode, options in list_mode_options().items():
        if mode != "lite":  # counts as a whole: it turns many things off
            assert dict(CompileConfig(mode=mode).turned_on) == options, mode


def test_no_mode_of_torch_s_own_is_taken_for_another() -> None:
    """Not even ``reduce-overhead`` on a CPU: there Inductor leaves out the checks of inputs."""
    on_cpu, on_cuda = environment.modes(CPU), environment.modes(torch.device("cuda"))
    assert on_cpu["reduce-overhead"] == "reduce-overhead"
    assert on_cpu["max-autotune"] == "max-autotune"
    assert {on_cuda[m] for m in ("default", "reduce-overhead", "max-autotune")} == {
        "default", "reduce-overhead", "max-autotune",
    }  # fmt: skip


def test_a_mode_that_only_a_newer_torch_has_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor

    options = {
        **torch._inductor.list_mode_options(),
        "from-the-future": {"warp_speed": True},
        "just-tuned": {"coordinate_descent_tuning": True},
    }
    monkeypatch.setattr(torch._inductor, "list_mode_options", lambda: options)
    modes = environment.modes(CPU)
    assert modes["from-the-future"] == "from-the-future"
    assert modes["just-tuned"] == "default"
    assert environment.modes(torch.device("cuda"))["just-tuned"] == "just-tuned"


def test_each_default_backend_works_or_has_a_reason() -> None:
    found = environment.backends(CPU)
    assert list(found) == list(DEFAULT_BACKENDS)
    assert found["inductor"] == ""
    assert found["cudagraphs"] == "no CUDA device: torch would run it as eager"
    registered = torch._dynamo.list_backends(None)
    for name, reason in found.items():
        if name not in registered:
            assert reason and "\n" not in reason, name
        if not reason:
            assert name in registered, name


def test_a_name_that_torch_does_not_know_has_a_reason_with_the_version() -> None:
    (reason,) = environment.backends(CPU, ["flux_capacitor"]).values()
    assert reason == f"torch {torch.__version__} knows no backend of this name"
    assert environment.backends(CPU, ["eager", "aot_eager"]) == {"aot_eager": ""}


def test_ipex_and_tensorrt_name_what_is_missing() -> None:
    found = environment.backends(CPU, ["ipex", "tensorrt"])
    assert "torch 2.8" in found["ipex"] and torch.__version__ in found["ipex"]
    assert found["tensorrt"] == "torch_tensorrt is not installed"


@pytest.mark.parametrize("name", ["warp", "cuda:99", "cuda"])
def test_a_device_that_is_not_here_is_a_usage_error(name: str) -> None:
    if name == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has one")
    with pytest.raises(UsageError, match=f"device '{name}' cannot be used here") as caught:
        environment.pick_device(name)
    assert "\n" not in caught.value.what


def test_the_description_of_the_machine_is_json() -> None:
    found = machine.describe(CPU)
    assert json.loads(json.dumps(found)) == found
    assert found["cores"] >= 1 and found["threads"] == torch.get_num_threads()
    assert found["cuda"] is None and found["device_name"]


# --- failures -----------------------------------------------------------------------------------


def caught_from(function: Callable[[], Any]) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        function()
    return caught.value


def compiled(backend: str = "aot_eager", function: Any = None, **settings: Any) -> BaseException:
    """What torch.compile raises for a setting, at the first call."""
    telemetry.reset_dynamo(backend)
    return caught_from(
        lambda: torch.compile(function or torch.sin, backend=backend, **settings)(torch.ones(2))
    )


def raising(error: BaseException) -> str:
    def fails(graph: Any, inputs: Any, **options: Any) -> Any:
        raise error

    register_backend(fails, name="fails")
    return "fails"


def adds(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def breaks(x: torch.Tensor) -> torch.Tensor:
    torch._dynamo.graph_break()
    return x + 1


@pytest.mark.parametrize(
    ("backend", "settings", "outcome", "words"),
    [
        ("flux_capacitor", {}, Outcome.UNSUPPORTED, "flux_capacitor"),
        ("ts", {"mode": "max-autotune"}, Outcome.UNSUPPORTED, "unexpected keyword argument 'mode'"),
        ("inductor", {"mode": "ludicrous"}, Outcome.UNSUPPORTED, "Unrecognized mode"),
        ("inductor", {"options": {"ludicrous": True}}, Outcome.UNSUPPORTED, "ludicrous"),
        (ImportError("No module named 'x'"), {}, Outcome.UNSUPPORTED, "ImportError: No module"),
        (FileNotFoundError("gcc"), {}, Outcome.UNSUPPORTED, "FileNotFoundError: gcc"),
        (ValueError("cannot\ndo it"), {}, Outcome.COMPILE_ERROR, "ValueError: cannot"),
    ],
)
def test_what_a_backend_cannot_do_has_its_outcome_and_words(
    backend: Any, settings: dict[str, Any], outcome: Outcome, words: str
) -> None:
    error = compiled(backend if isinstance(backend, str) else raising(backend), adds, **settings)
    assert outcome_of(error, Step.COMPILE) is outcome
    assert words in first_words(error)


def test_a_graph_break_under_fullgraph_is_a_graph_break() -> None:
    error = compiled("aot_eager", breaks, fullgraph=True)
    assert isinstance(error, torch._dynamo.exc.Unsupported)
    for step in (Step.COMPILE, Step.VERIFY):
        assert outcome_of(error, step) is Outcome.GRAPH_BREAK


@pytest.mark.parametrize("fullgraph", [False, True])
def test_the_recompile_limit_is_not_compiled(fullgraph: bool) -> None:
    telemetry.reset_dynamo("aot_eager")
    torch._dynamo.config.fail_on_recompile_limit_hit = True

    def powers(x: torch.Tensor, exponent: str) -> torch.Tensor:
        return x * len(exponent)

    function = torch.compile(powers, backend="aot_eager", fullgraph=fullgraph)
    with torch._dynamo.config.patch(recompile_limit=2):
        error = caught_from(lambda: [function(torch.ones(2), "x" * n) for n in range(2, 7)])
    for step in (Step.COMPILE, Step.VERIFY, Step.MEASURE):
        assert outcome_of(error, step) is Outcome.NOT_COMPILED


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried ..."),
        caught_from(lambda: torch.empty(2**60, dtype=torch.uint8)),
    ],
)
def test_memory_that_runs_out_is_the_same_at_every_step(error: Exception) -> None:
    assert all(outcome_of(error, step) is Outcome.OUT_OF_MEMORY for step in Step)
    wrapped = compiled(raising(error), adds)
    assert outcome_of(wrapped, Step.COMPILE) is Outcome.OUT_OF_MEMORY


@pytest.mark.parametrize(
    ("step", "outcome"),
    [
        (Step.IMPORT, Outcome.IMPORT_ERROR),
        (Step.BUILD, Outcome.RUNTIME_ERROR),
        (Step.EAGER, Outcome.RUNTIME_ERROR),
        (Step.COMPILE, Outcome.COMPILE_ERROR),
        (Step.VERIFY, Outcome.RUNTIME_ERROR),
        (Step.MEASURE, Outcome.RUNTIME_ERROR),
    ],
)
@pytest.mark.parametrize("error", [SystemExit("gone"), ValueError("gone")])
def test_an_exit_or_an_error_is_named_after_the_step_that_it_ends(
    error: BaseException, step: Step, outcome: Outcome
) -> None:
    assert outcome_of(error, step) is outcome
    assert first_words(error) == f"{type(error).__name__}: gone"


def test_a_missing_module_in_the_users_forward_is_no_unsupported_setting() -> None:
    for step in (Step.BUILD, Step.EAGER, Step.VERIFY):
        assert outcome_of(ImportError("no x"), step) is Outcome.RUNTIME_ERROR


def test_what_an_error_was_raised_from_none_of_is_not_its_cause() -> None:
    def fallback() -> None:
        try:
            raise FileNotFoundError("a cache entry that is not there yet")
        except FileNotFoundError:
            raise ValueError("the compiler's own mistake") from None

    assert outcome_of(caught_from(fallback), Step.COMPILE) is Outcome.COMPILE_ERROR


def test_the_first_words_are_one_short_line() -> None:
    assert first_words(ValueError()) == "ValueError"
    assert first_words(ValueError("\n\n  first  \nsecond")) == "ValueError: first"
    assert len(first_words(ValueError("x" * 5000))) < 320


def test_the_place_of_an_error_is_the_last_line_of_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text("import json\ndef f():\n    return json.loads('{')\n")
    space: dict[str, Any] = {}
    source = (tmp_path / "theirs.py").read_text()
    exec(compile(source, str(tmp_path / "theirs.py"), "exec"), space)
    error = caught_from(space["f"])
    assert where_in(error, tmp_path) == "theirs.py:3   return json.loads('{')"
    assert where_in(error, tmp_path / "elsewhere") is None


def test_the_place_of_a_syntax_error_is_in_the_file_that_has_it(tmp_path: Path) -> None:
    file = tmp_path / "theirs.py"
    error = caught_from(lambda: compile("x = 1\ny = (\n", str(file), "exec"))
    assert str(where_in(error, tmp_path)).startswith("theirs.py:2")


def test_what_is_timed_runs_as_it_will_run_later() -> None:
    """A stance of torch's costs a microsecond in each compiled call."""
    model = torch.nn.Linear(2, 2)
    seen: list[str] = []
    for is_eager in (True, False):
        config = EAGER if is_eager else CompileConfig()
        side = Side(
            model, False, config=config, call=lambda: seen.append(eval_frame._stance.stance)
        )
        with timed(side).context():
            side.call()
    assert seen == ["default", "default"]


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_recompile_in_a_timed_block_is_an_error(fullgraph: bool) -> None:
    function = torch.compile(
        lambda x, by: x * by, backend="eager", dynamic=False, fullgraph=fullgraph
    )
    factors = iter(range(2, 9))
    side = Side(
        torch.nn.Linear(2, 2),
        grad=False,
        config=CompileConfig(),
        call=lambda: function(torch.ones(2), next(factors)),
    )
    side.call()
    with (
        pytest.raises(RuntimeError, match="recompiled while it was timed"),
        timed(side).context(),
    ):
        side.call()
