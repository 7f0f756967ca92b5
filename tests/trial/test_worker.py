"""The worker by hand, the probe of the environment, and what each exception means."""

from __future__ import annotations

import importlib.util
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
from in_process import Try, sent
from torch._dynamo import eval_frame
from torch._dynamo.backends.registry import register_backend

from autocompile.errors import UsageError, first_words
from autocompile.estimate.intervals import speedup
from autocompile.runtime import machine
from autocompile.settings.backends import BACKENDS
from autocompile.settings.config import EAGER, CompileConfig
from autocompile.store.record import Outcome, Step
from autocompile.trial import worker
from autocompile.trial.failures import Failed, outcome_of, where_in
from autocompile.trial.measure import environment, telemetry
from autocompile.trial.model.sides import Side
from autocompile.trial.tasks.steps import timed

CPU, PLAIN = torch.device("cpu"), str(TARGETS / "plain.py")
pytestmark = pytest.mark.usefixtures("_dynamo_as_it_was")
LIMITS = {"half_width": 0.5, "max_s": 0.1, "front_s": 0.1}


# --- by hand ------------------------------------------------------------------------------------


def a_trial(**changes: Any) -> dict[str, Any]:
    backend = changes.pop("backend", "aot_eager")
    request = {
        "kind": "trial",
        "number": 7,
        "target": PLAIN,
        "phase": "forward",
        "sides": [{"config": changes.pop("config", {"backend": backend})}],
        "batch_size": 4,
        "device": "cpu",
        "seed": 0,
        "limits": LIMITS,
    }
    return {**request, **changes}


def by_hand(folder: Path, request: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """The steps in order and the result, as a user sees them on a terminal."""
    folder.mkdir(exist_ok=True)
    (folder / "request.json").write_text(json.dumps(request))
    command = [sys.executable, "-m", "autocompile.trial", str(folder)]
    # With more threads each waits for the others.
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environ, check=False
    )
    lines = [
        json.loads(line)
        for line in done.stdout.splitlines()
        if line.startswith('{"nonce"')
    ]
    assert lines, done.stderr
    assert all(line["nonce"] == "" for line in lines)
    *steps, result = lines
    assert [line["event"] for line in lines] == ["step"] * len(steps) + ["result"]
    return [line["step"] for line in steps], sent(result, request["number"])


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
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    return sent(result, request["number"])


def test_a_trial_goes_through_the_steps_in_order_and_tells_what_its_record_needs(
    tmp_path: Path,
) -> None:
    steps, result = by_hand(tmp_path, a_trial(limits={"half_width": 0.5}))
    assert steps == [
        "import",
        "build",
        "eager",
        "compile",
        "verify",
        "measure",
        "verify",
        "verify",  # the checks that a search leaves to the first race
    ]
    assert (result["outcome"], result["step"]) == ("ok", "exit")
    assert set(result) >= {"detail", "notes", "eager_peak_memory_bytes"}
    assert result["weights_live"] is True
    assert (result["graphs"], result["graph_breaks"], result["recompiles"]) == (1, 0, 0)
    parameters = 4 * (6 * 3 + 3 + 3)  # bytes
    assert (
        result["peak_memory_bytes"] is None or result["peak_memory_bytes"] >= parameters
    )
    measurement = result["measurement"]
    assert 8 <= len(measurement["eager_s"]) == len(measurement["compiled_s"])
    assert min(*measurement["eager_s"], *measurement["compiled_s"]) > 0
    assert min(measurement["calls"]) > 1
    assert 0.1 < speedup(measurement["eager_s"], measurement["compiled_s"]).value < 10
    assert result["compile_s"] > max(measurement["compiled_s"])
    assert 0 < result["reference_s"] < 1


def test_a_probe_describes_target_and_machine(try_it: Try) -> None:
    result = try_it(PLAIN, kind="probe", phases=None, backends=None)
    assert (result["outcome"], result["step"]) == ("ok", "exit")
    target = result["target"]
    assert target["kind"] == "functions" and target["description"] == "Net"
    assert target["parameters"] == 6 * 3 + 3
    assert target["phases"] == ["forward", "optimizer_step"]
    assert "fixed_batch_size" not in target
    assert result["environment"]["torch"] == torch.__version__
    assert result["environment"]["device"] == "cpu"
    assert list(result["modes"]) == list(environment.modes(CPU))
    assert set(result["backends"]) == set(BACKENDS)
    assert "aot_eager" in result["all_backends"]


def test_a_probe_learns_a_fixed_batch_size_and_backends_of_the_targets_own(
    try_it: Try, work: Path
) -> None:
    text = (TARGETS / "kernelbench.py").read_text("utf-8")
    own = "\n@torch._dynamo.register_backend\ndef mine(graph, inputs):\n    return graph\n"
    (work / "kb.py").write_text("import torch._dynamo\n" + text + own)
    result = try_it(
        "kb.py", kind="probe", phases=None, backends=["mine", "nobodys", "eager"]
    )
    assert result["target"]["fixed_batch_size"] == 5
    assert result["backends"].keys() == {"mine", "nobodys"}
    assert result["backends"]["mine"] == ""
    assert "knows no backend of this name" in result["backends"]["nobodys"]


@pytest.mark.parametrize(
    ("text", "outcome", "step", "message", "where"),
    [
        ("import json\njson.loads('')\n", "import_error", "import",
         "JSONDecodeError: Expecting value: line 1 column 1 (char 0)", ":2   json.loads('')"),
        ("x = 1\ny = (\n", "import_error", "import",
         "SyntaxError: '(' was never closed (model.py, line 2)", ":2"),
        ("def get_model(): raise KeyError('no weights')\n",
         "runtime_error", "build", "KeyError: 'no weights'", ":1   def get_model"),
        ("import torch\nget_model = torch.nn.ReLU\ndef get_model():\n    return torch.nn.ReLU()\n"
         "def get_inputs(b):\n    raise ValueError('no data')\n",
         "runtime_error", "eager", "ValueError: no data", ":6"),
    ],
)  # fmt: skip
def test_an_error_of_the_users_code_has_its_outcome_step_words_and_line(
    try_it: Try,
    work: Path,
    text: str,
    outcome: str,
    step: str,
    message: str,
    where: str,
) -> None:
    (work / "model.py").write_text(text)
    result = try_it("model.py", kind="probe")
    assert (result["outcome"], result["step"], result["message"]) == (
        outcome,
        step,
        message,
    )
    assert result["where"].startswith(f"model.py{where}")


def test_a_mistake_in_the_request_is_explained(try_it: Try) -> None:
    result = try_it(PLAIN, "forward_exploration", kind="probe")
    assert result["message"] == "this target has no phase forward_exploration"
    (detail,) = result["explained"]["details"]
    assert detail == "it has: forward, optimizer_step, train_step"


def test_why_nothing_was_captured_is_told(try_it: Try, work: Path) -> None:
    (work / "model.py").write_text(
        "import torch\nclass Net(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.memory = torch.nn.LSTM(6, 3)\n"
        "    def forward(self, x): return self.memory(x)[0]\n"
        "def get_model(): return Net()\ndef get_inputs(b): return torch.randn(5, b, 6)\n"
    )
    result = try_it("model.py")
    assert (result["outcome"], result["step"]) == ("not_compiled", "verify"), result
    _, _, why = result["message"].partition("everything ran in eager mode: ")
    assert "RNN, GRU, or LSTM" in why, result["message"]


ENDS_WORKERS = """
import time, torch
from autocompile.trial.measure import telemetry
telemetry.use_compile_workers(2, torch.device("cuda"))
telemetry.end_compile_workers()
time.sleep(2.5)  # meanwhile a thread of torch 2.15 sees that they are gone
"""


def test_compile_workers_that_are_not_needed_end_without_a_word() -> None:
    command = [sys.executable, "-c", ENDS_WORKERS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "subproc_pool" not in done.stderr, done.stderr


# --- environment --------------------------------------------------------------------------------


def test_what_a_mode_turns_on_is_what_the_installed_torch_says() -> None:
    from torch._inductor import list_mode_options

    assert next(iter(environment.modes(CPU))) == "default"
    assert environment.modes(CPU).keys() == list_mode_options().keys()
    for mode, options in list_mode_options().items():
        if mode != "lite":  # counts as a whole: it turns many things off
            assert dict(CompileConfig(mode=mode).turned_on) == options, mode


def test_each_mode_counts_as_itself_unless_its_options_have_no_effect_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a CPU ``reduce-overhead`` has one as well: Inductor leaves out the checks of inputs."""
    import torch._inductor

    options = {
        **torch._inductor.list_mode_options(),
        "from-the-future": {"warp_speed": True},
        "just-tuned": {"coordinate_descent_tuning": True},
    }
    monkeypatch.setattr(torch._inductor, "list_mode_options", lambda: options)
    for device in (CPU, torch.device("cuda")):
        modes = environment.modes(device)
        for name in ("default", "reduce-overhead", "max-autotune", "from-the-future"):
            assert modes[name] == name
        assert modes["just-tuned"] == ("default" if device == CPU else "just-tuned")


def test_each_default_backend_works_or_has_a_reason() -> None:
    found = environment.backends(CPU)
    assert list(found) == list(BACKENDS)
    assert found["inductor"] == ""
    assert found["cudagraphs"] == "it runs on cuda only"
    registered = torch._dynamo.list_backends(None)
    for name, reason in found.items():
        if name not in registered:
            assert reason and "\n" not in reason, name
        if not reason:
            assert name in registered, name


def test_a_backend_that_is_not_here_has_a_reason() -> None:
    found = environment.backends(CPU, ["flux_capacitor", "ipex", "eager", "aot_eager"])
    assert (
        found["flux_capacitor"]
        == f"torch {torch.__version__} knows no backend of this name"
    )
    assert "torch 2.8" in found["ipex"] and torch.__version__ in found["ipex"]
    assert found["aot_eager"] == "" and "eager" not in found


def test_zentorch_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda: True)
    needs = f"needs zentorch of torch's own minor version; this is torch {torch.__version__}"
    assert environment.backends(CPU, ["zentorch"]) == {"zentorch": needs}
    monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda: False)
    assert "no AVX-512" in environment.backends(CPU, ["zentorch"])["zentorch"]
    elsewhere = environment.backends(torch.device("cuda"), ["zentorch"])
    assert elsewhere == {"zentorch": "it runs on cpu only"}


def test_onnx_runtime_without_a_provider_for_the_gpu_is_not_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import onnxruntime

    only = ["AzureExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: only)
    found = environment.backends(torch.device("cuda"), ["onnxrt"])
    assert "no CUDAExecutionProvider" in found["onnxrt"]
    assert environment.backends(CPU, ["onnxrt"]) == {"onnxrt": ""}


def test_a_package_that_registers_a_backend_is_imported_in_no_other_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fork server imports what the probe has imported."""
    for name in ("zentorch", "zentorch.utils", "zentorch_of_another_kind"):
        monkeypatch.setitem(sys.modules, name, sys.modules["numpy"])
    found = environment.library_modules()
    assert [name for name in found if "zentorch" in name] == [
        "zentorch_of_another_kind"
    ]


@pytest.mark.parametrize("name", ["warp", "cuda:99", "cuda", "meta"])
def test_a_device_that_is_not_here_is_a_usage_error(name: str) -> None:
    if name == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has one")
    with pytest.raises(
        UsageError, match=f"device '{name}' cannot be used here"
    ) as caught:
        environment.pick_device(name)
    assert "\n" not in caught.value.what


def test_the_description_of_the_machine_is_json() -> None:
    found = machine.describe(CPU)
    assert json.loads(json.dumps(found)) == found
    assert found["cores"] >= 1 and found["threads"] == torch.get_num_threads()
    assert found["cuda"] is None and found["device_name"]


@pytest.mark.gpu
def test_the_description_of_a_gpu_has_its_memory_driver_and_watts() -> None:
    found = machine.describe_gpu(torch.device("cuda"))
    assert found["device_memory_bytes"] > 2**30 and found["power_limit_w"] > 10
    assert found["driver"][0].isdigit()


# --- failures -----------------------------------------------------------------------------------


def caught_from(function: Callable[[], Any]) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        function()
    return caught.value


def compiled(
    backend: str = "aot_eager", function: Any = None, **settings: Any
) -> BaseException:
    """What torch.compile raises for a setting, at the first call."""
    telemetry.reset_dynamo(backend)
    return caught_from(
        lambda: torch.compile(function or torch.sin, backend=backend, **settings)(
            torch.ones(2)
        )
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
        (
            "ts",
            {"mode": "max-autotune"},
            Outcome.UNSUPPORTED,
            "unexpected keyword argument 'mode'",
        ),
        ("inductor", {"mode": "ludicrous"}, Outcome.UNSUPPORTED, "Unrecognized mode"),
        (
            "inductor",
            {"options": {"ludicrous": True}},
            Outcome.UNSUPPORTED,
            "ludicrous",
        ),
        (
            ImportError("No module named 'x'"),
            {},
            Outcome.UNSUPPORTED,
            "ImportError: No module",
        ),
        (FileNotFoundError("gcc"), {}, Outcome.UNSUPPORTED, "FileNotFoundError: gcc"),
        (ValueError("cannot\ndo it"), {}, Outcome.COMPILE_ERROR, "ValueError: cannot"),
    ],
)
def test_what_a_backend_cannot_do_has_its_outcome_and_words(
    backend: Any, settings: dict[str, Any], outcome: Outcome, words: str
) -> None:
    error = compiled(
        backend if isinstance(backend, str) else raising(backend), adds, **settings
    )
    assert outcome_of(error, Step.COMPILE) is outcome
    assert words in first_words(error)


def test_a_graph_break_under_fullgraph_is_a_graph_break() -> None:
    error = compiled("aot_eager", breaks, fullgraph=True)
    assert isinstance(error, torch._dynamo.exc.Unsupported)
    for step in (Step.COMPILE, Step.VERIFY):
        assert outcome_of(error, step) is Outcome.GRAPH_BREAK


@pytest.mark.parametrize("fullgraph", [False, True])
def test_the_recompile_limit_is_an_outcome(fullgraph: bool) -> None:
    telemetry.reset_dynamo("aot_eager")
    torch._dynamo.config.fail_on_recompile_limit_hit = True

    def powers(x: torch.Tensor, exponent: str) -> torch.Tensor:
        return x * len(exponent)

    function = torch.compile(powers, backend="aot_eager", fullgraph=fullgraph)
    with torch._dynamo.config.patch(recompile_limit=2):
        error = caught_from(
            lambda: [function(torch.ones(2), "x" * n) for n in range(2, 7)]
        )
    for step in (Step.COMPILE, Step.VERIFY, Step.MEASURE):
        assert outcome_of(error, step) is Outcome.RECOMPILE_LIMIT


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError(
            "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried ..."
        ),
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
def test_an_exit_or_an_error_is_named_after_the_step_that_it_ends(
    step: Step, outcome: Outcome
) -> None:
    for error in (SystemExit("gone"), ValueError("gone")):
        assert outcome_of(error, step) is outcome
        assert first_words(error) == f"{type(error).__name__}: gone"
    if step is not Step.COMPILE:  # there a module that is missing is the backend's
        assert outcome_of(ImportError("no x"), step) is outcome


def test_what_an_error_was_raised_from_none_of_is_not_its_cause() -> None:
    def fallback() -> None:
        try:
            raise FileNotFoundError("a cache entry that is not there yet")
        except FileNotFoundError:
            raise ValueError("the compiler's own mistake") from None

    assert outcome_of(caught_from(fallback), Step.COMPILE) is Outcome.COMPILE_ERROR


def test_the_first_words_are_one_short_line(tmp_path: Path) -> None:
    assert first_words(ValueError()) == "ValueError"
    assert first_words(ValueError("\n\n  first  \nsecond")) == "ValueError: first"
    assert len(first_words(ValueError("x" * 5000))) < 320
    said = (
        "Unsupported function call (delayed)\n  Explanation: Dynamo determined that a graph break "
        "should occur when calling `m`. Reason: {}\n\n\n  Developer debug context: source: m"
    )
    assert first_words(ValueError(said.format("no LSTM. Set b"))) == (
        "ValueError: no LSTM. Set b"
    )
    assert first_words(ValueError(said.format(None))).endswith("call (delayed)")
    assert where_in(caught_from(lambda: json.loads("{")), tmp_path) is None, (
        "not the user's"
    )


def test_what_is_timed_runs_as_it_will_run_later() -> None:
    """A stance of torch's costs a microsecond in each compiled call."""
    model, seen = torch.nn.Linear(2, 2), []
    for is_eager in (True, False):
        config = EAGER if is_eager else CompileConfig()
        with timed(Side(model, grad=False, config=config)).context():
            seen.append(eval_frame._stance.stance)
    assert seen == ["default", "default"]


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_recompile_in_a_timed_block_is_an_error(fullgraph: bool) -> None:
    function = torch.compile(
        lambda x, by: x * by, backend="eager", dynamic=False, fullgraph=fullgraph
    )
    side = Side(torch.nn.Linear(2, 2), grad=False, config=CompileConfig())
    function(torch.ones(2), 2)
    with (
        pytest.raises(Failed, match="recompiled while it was timed"),
        timed(side).context(),
    ):
        function(torch.ones(2), 3)
