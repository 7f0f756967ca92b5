"""Targets: each form in which a user can bring a model, and what is said about each wrong one."""

from __future__ import annotations

import sys
from collections import UserDict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import TARGETS
from in_process import Try

from autocompile.errors import TargetError
from autocompile.settings.config import CompileConfig
from autocompile.store.targets import split_spec
from autocompile.trial.model.load import build, import_target
from autocompile.trial.model.sides import make_side
from autocompile.trial.model.target import (
    Target,
    call_model,
    seed_everything,
    sum_of_floats,
)
from autocompile.trial.tasks.probing import _shapes_in, described
from autocompile.trial.verify.reference import Reference

PLAIN, KERNELBENCH = str(TARGETS / "plain.py"), str(TARGETS / "kernelbench.py")
OWN_TRAINING = str(TARGETS / "own_training.py")


@pytest.fixture(autouse=True)
def _modules_as_they_were() -> Iterator[None]:
    modules, path = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if not name.startswith("torch"):
            del sys.modules[name]


def load(spec: str, seed: int = 0) -> Target:
    seed_everything(seed)
    return build(spec, import_target(spec))


def write(folder: Path, text: str, name: str = "model.py") -> str:
    (folder / name).write_text(text)
    return name


def error_of(spec: str) -> TargetError:
    with pytest.raises(TargetError) as caught:
        load(spec)
    return caught.value


@pytest.mark.parametrize(
    ("spec", "place", "name"),
    [
        ("model.py", "model.py", ""),
        ("model.py:net", "model.py", "net"),
        ("/a/b c/model.py:_net2", "/a/b c/model.py", "_net2"),
        ("package.module:net", "package.module", "net"),
        ("package.module", "package.module", ""),
        ("C:\\here\\model.py", "C:\\here\\model.py", ""),
        ("C:\\here\\model.py:net", "C:\\here\\model.py", "net"),
        ("model.py:3", "model.py:3", ""),
    ],
)
def test_a_target_is_a_place_and_perhaps_a_name(
    spec: str, place: str, name: str
) -> None:
    assert split_spec(spec) == (place, name)


# --- forms --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        (PLAIN, "functions"),
        (f"{PLAIN}:get_model", "functions"),
        (f"{PLAIN}:make_wide", "functions"),
        (f"{PLAIN}:instance", "functions"),
        (f"{PLAIN}:Net", "functions"),
        (KERNELBENCH, "KernelBench"),
        (OWN_TRAINING, "functions"),
        ("autocompile.trial.model.sample", "functions"),
        ("autocompile.trial.model.sample:get_model", "functions"),
    ],
)
def test_each_form_builds_feeds_and_runs(spec: str, kind: str) -> None:
    target = load(spec)
    assert target.kind == kind
    assert not target.library and target.known_phases()[0] == "forward"
    assert target.default_phases() == ("forward", "optimizer_step")
    inputs = target.make_inputs(None if target.fixed_batch else 4)
    assert target.loss(call_model(target.model, inputs), inputs).requires_grad


def test_a_files_neighbours_are_found(work: Path) -> None:
    (work / "my model's").mkdir()
    write(work / "my model's", "width = 7\n", "beside.py")
    write(
        work / "my model's",
        "import torch\nfrom beside import width\n"
        "def get_model(): return torch.nn.Linear(width, 2)\n"
        "def get_inputs(batch_size): return torch.randn(batch_size, width)\n",
    )
    assert load("my model's/model.py").model.in_features == 7


def test_a_package_in_the_current_folder_is_a_target(work: Path) -> None:
    (work / "mine").mkdir()
    text = "import torch\nnet = torch.nn.Linear(3, 2)\ndef get_inputs(b): return torch.ones(b, 3)\n"
    write(work / "mine", text, "__init__.py")
    write(work / "mine", text, "deep.py")
    sys.path.insert(0, "")  # as ``python -m`` does
    assert load("mine.deep:net").model.in_features == 3
    assert load("mine:net").kind == "nn.Module", "no get_model beside it"


def test_classes_of_the_users_file_can_be_dataclasses_and_pickled(work: Path) -> None:
    """Both look the class' module up in sys.modules."""
    write(
        work,
        "from __future__ import annotations\nimport torch, pickle, dataclasses\n"
        "@dataclasses.dataclass\nclass Sizes:\n    width: int = 3\n"
        "def get_model():\n"
        "    sizes = pickle.loads(pickle.dumps(Sizes()))\n"
        "    return torch.nn.Linear(sizes.width, 2)\n"
        "def get_inputs(b): return torch.ones(b, 3)\n",
        "with_classes.py",
    )
    assert load("with_classes.py").model.in_features == 3


# --- inputs, optimizer, loss --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "right"),
    [
        ("(torch.ones(b, 3), torch.ones(b, 3))", -1.0),
        ("[torch.ones(b, 3), torch.ones(b, 3)]", -1.0),
        ("{'y': torch.ones(b, 3), 'x': torch.zeros(b, 3)}", -2.0),
        ("torch.ones(b, 3)", 1.0),
    ],
)
def test_inputs_come_as_a_tuple_a_list_a_dictionary_or_one_tensor(
    work: Path, made: str, right: float
) -> None:
    write(
        work,
        "import torch\nclass Net(torch.nn.Module):\n"
        "    def forward(self, x, y=None): return x - (0 if y is None else 2 * y)\n"
        f"def get_model(): return Net()\ndef get_inputs(b): return {made}\n",
    )
    target = load("model.py")
    assert target.choices["inputs"] == "get_inputs() of the target"
    output = call_model(target.model, target.make_inputs(5))
    assert torch.equal(output, torch.full((5, 3), right))


class Encoding(UserDict[str, Any]):
    """As tokenizers give it: a mapping, and no dictionary."""

    def to(self, device: torch.device) -> Encoding:
        return Encoding({name: x.to(device) for name, x in self.items()})


class ByName(torch.nn.Linear):
    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return super().forward(ids * mask)


class ByItem(torch.nn.Linear):
    def forward(self, batch: Encoding) -> torch.Tensor:
        return super().forward(batch["ids"] * batch["mask"])


@pytest.mark.parametrize("kind", [ByName, ByItem])
def test_a_mapping_that_is_no_dictionary_is_moved_and_passed_as_the_model_takes_it(
    kind: type[torch.nn.Linear],
) -> None:
    given = Encoding(ids=torch.ones(4, 8), mask=torch.ones(4, 8))
    target = Target("functions", kind(8, 2), lambda _: given)
    inputs = target.inputs("forward", 4)
    torch.testing.assert_close(
        call_model(target.model, inputs),
        torch.nn.Linear.forward(target.model, given["ids"]),
    )
    target.to(torch.device("meta"))
    assert {x.device.type for x in target.inputs("forward", 4).values()} == {"meta"}


def test_get_inputs_without_a_parameter_means_a_fixed_batch() -> None:
    target = load(KERNELBENCH)
    assert target.fixed_batch
    assert [x.shape[0] for x in target.make_inputs(None)] == [5, 5]
    assert not load(PLAIN).fixed_batch
    assert load(PLAIN).make_inputs(3)[0].shape == (3, 6)


def test_the_users_optimizer_and_loss_are_used() -> None:
    target = load(OWN_TRAINING)
    optimizer = target.make_optimizer(target.model)
    assert type(optimizer) is torch.optim.SGD and optimizer.defaults["lr"] == 0.5
    assert target.choices["optimizer"] == "get_optimizer() of the target"
    assert target.choices["loss"] == "get_loss() of the target"
    seed_everything(1)
    inputs = target.make_inputs(4)
    side = make_side(target, "train_step", inputs)
    prediction = call_model(target.model, inputs)["prediction"]
    right = (prediction * inputs["weight"]).square().mean()
    assert torch.allclose(side.run(), right)
    moved = target.model.linear.weight - side.model.linear.weight
    assert torch.allclose(moved, 0.5 * side.model.linear.weight.grad)


def test_the_default_optimizer_is_adam_over_every_parameter() -> None:
    target = load(PLAIN)
    optimizer = target.make_optimizer(target.model)
    assert type(optimizer) is torch.optim.Adam
    (group,) = optimizer.param_groups
    assert [*map(id, group["params"])] == [*map(id, target.model.parameters())]


def test_the_default_loss_adds_every_output_that_can_be_differentiated() -> None:
    a = torch.tensor([1.0, 2.0], requires_grad=True)
    b = torch.tensor(3.0, dtype=torch.bfloat16, requires_grad=True)
    output = {
        "a": a,
        "b": [b],
        "index": torch.tensor([7]),
        "fixed": torch.tensor(100.0),
        "n": 5,
    }
    assert sum_of_floats(output, None).item() == 6.0
    assert sum_of_floats(SimpleNamespace(logits=a), None).item() == 3.0
    with pytest.raises(
        TargetError, match="no output of the model depends on its parameters"
    ):
        sum_of_floats({"fixed": torch.tensor(100.0)}, None)


# --- repeatable ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [5, 2**32 + 5])
def test_two_builds_with_one_seed_have_the_same_weights_and_inputs(seed: int) -> None:
    def made(seed: int) -> list[torch.Tensor]:
        target = load(PLAIN, seed)
        seed_everything(seed)
        drawn = [*target.model.state_dict().values(), target.make_inputs(4)[0]]
        return [*drawn, torch.tensor(target.model.scale)]

    first, again, other = made(seed), made(seed), made(6)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))


# --- what is said about a wrong one -------------------------------------------------------------


NAMES = "it defines: Net, Data, get_model, get_inputs, make_wide"
NET = "net = torch.nn.Sequential(torch.nn.Linear(4, 4))\n"
NEEDED = "Net cannot be called without arguments: missing a required argument: 'hidden'"
CLASS = "class Net(torch.nn.Module):\n def __init__(self, hidden): ...\n"


@pytest.mark.parametrize(
    ("text", "spec", "what", "detail"),
    [
        ("", f"{PLAIN}:get_net", f"{PLAIN} does not define get_net", NAMES),
        ("", f"{PLAIN}:number", f"{PLAIN}:number is a int", "an nn.Module"),
        ("", f"{PLAIN}:Data", f"{PLAIN}:Data is a type", "an nn.Module"),
        ("", f"{PLAIN}:half_made", f"{PLAIN}:half_made is a partial", "an nn.Module"),
        (CLASS + "get_model = Net", "model.py", f"model.py: {NEEDED}", "an nn.Module"),
        (CLASS, "model.py:Net", f"model.py:Net: {NEEDED}", "an nn.Module"),
        (
            "def Net(hidden): ...",
            "model.py:Net",
            f"model.py:Net: {NEEDED}",
            "an nn.Module",
        ),
        (
            NET + "def get_model(): return torch.compile(net)",
            "model.py",
            "the model of model.py is already compiled",
            "it went through",
        ),
        (
            NET + "def get_model(): net[0].compile(); return net",
            "model.py",
            "the model of model.py is already compiled",
            "its part '0' went through",
        ),
    ],
)
def test_what_is_no_target_is_said_with_what_would_be_one(
    work: Path, text: str, spec: str, what: str, detail: str
) -> None:
    write(work, f"import torch\n{text}\ndef get_inputs(b): return torch.ones(b, 4)\n")
    error = error_of(spec)
    assert error.what == what
    assert detail in error.details[0]


@pytest.mark.parametrize(
    ("text", "defines", "hint"),
    [
        (
            "def get_net(): ...\ndef get_inputs(b): ...",
            "get_net, get_inputs",
            "get_net",
        ),
        ("def get_loss(o, i): ...\ndef make(): ...", "get_loss, make", "make"),
        ("from torch.nn.functional import softmax\nx = 1", "nothing", ""),
        (
            "class Net(nn.Linear):\n def __init__(self): super().__init__(2, 2)",
            "Net",
            "Net",
        ),
        ("net = nn.Linear(2, 2)\ndef other(): ...", "net, other", "net"),
    ],
)
def test_a_file_without_get_model_is_told_what_to_try(
    work: Path, text: str, defines: str, hint: str
) -> None:
    error = error_of(write(work, f"from torch import nn\n{text}\n"))
    assert error.what == "model.py does not define get_model()"
    assert error.details == (f"it defines: {defines}",)
    assert (
        error.hint
        == f"autocompile {f'tune model.py:{hint}' if hint else 'init model.py'}"
    )


def test_a_model_without_inputs_beside_it_is_said_with_what_they_may_be(
    work: Path,
) -> None:
    write(work, "from torch import nn\ndef get_model(): return nn.Linear(9, 2)\n")
    error = error_of("model.py")
    assert error.what == "model.py has no get_inputs(batch_size) next to it"
    (detail,) = error.details
    assert "a dict for model(**x)" in detail
    assert error.hint is not None and error.hint.startswith("autocompile init")


def test_a_file_that_is_not_python_is_said(work: Path) -> None:
    with pytest.raises(TargetError, match=r"weights\.pt is not a Python file"):
        import_target(write(work, "x", "weights.pt"))


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ("missing.py", FileNotFoundError),
        ("a_package_that_is_not_there.module:net", ModuleNotFoundError),
        ("broken.py", SyntaxError),
        ("fails.py", ZeroDivisionError),
    ],
)
def test_what_python_or_the_users_code_raises_is_passed_on(
    work: Path, spec: str, error: type[Exception]
) -> None:
    write(work, "def get_model(:\n", "broken.py")
    write(work, "def get_model(): return 1 / 0\n", "fails.py")
    with pytest.raises(error):
        load(spec)


# --- sides --------------------------------------------------------------------------------------


def test_a_side_runs_in_eval_mode_without_gradients_unless_it_trains() -> None:
    target = load(PLAIN)
    target.model.train()
    forward = make_side(target, "forward", target.make_inputs(2))
    assert not forward.model.training and not forward.run().requires_grad
    training = make_side(target, "train_step", target.make_inputs(2))
    assert training.model.training and training.grad


def test_restore_puts_weights_and_optimizer_state_back() -> None:
    target = load(PLAIN)
    side = make_side(target, "train_step", target.make_inputs(4))
    side.run()
    (optimizer,) = side.optimizers
    steps = [t for state in optimizer.state.values() for t in state.values()]
    changing = [*side.model.parameters(), *steps]
    side.keep()
    kept = [t.detach().clone() for t in changing]
    side.run()
    assert any(not torch.equal(a, b) for a, b in zip(kept, changing, strict=True))
    side.restore()
    assert all(torch.equal(a, b) for a, b in zip(kept, changing, strict=True))
    assert steps


# --- how an optimizer is made, for exports --------------------------------------------------------


def test_of_an_optimizer_with_numbers_of_numpy_the_rate_is_told(
    work: Path, try_it: Try
) -> None:
    write(
        work,
        "import numpy, torch\ndef get_model(): return torch.nn.Linear(3, 2)\n"
        "def get_inputs(b): return torch.ones(b, 3)\ndef get_optimizer(model):\n"
        "    more = {'weight_decay': numpy.float32(0.5), 'betas': (numpy.float64(0.5), 0.75)}\n"
        "    return torch.optim.Adam(model.parameters(), lr=numpy.float32(0.25), **more)\n",
    )
    result = try_it(work / "model.py", "optimizer_step", kind="probe")
    assert result["outcome"] == "ok", result["message"]
    said = result["target"]["optimizer"]
    assert said == {"lr": 0.25}


def test_an_optimizer_is_told_by_its_class_and_what_is_not_its_default() -> None:
    model = torch.nn.Linear(2, 2)
    made = torch.optim.AdamW(
        model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.01
    )
    assert described(made, model) == {
        "lr": 3e-4,
        "class": "AdamW",
        "arguments": {"lr": 3e-4, "betas": (0.9, 0.95)},
    }
    assert described(torch.optim.Adam(model.parameters()), model)["arguments"] == {}


class Own(torch.optim.SGD):
    """Of the user's own."""


@pytest.mark.parametrize(
    "make",
    [
        lambda m: Own(m.parameters(), lr=0.1),
        lambda m: torch.optim.SGD([m.weight], lr=0.1),
        lambda m: torch.optim.SGD(
            [{"params": [m.weight]}, {"params": [m.bias], "lr": 1.0}], lr=0.1
        ),
        lambda m: torch.optim.Adam(m.parameters(), lr=torch.tensor(0.1)),
    ],
)
def test_of_an_optimizer_that_a_class_and_numbers_do_not_say_only_the_rate_is_told(
    make: Any,
) -> None:
    model = torch.nn.Linear(2, 2)
    assert described(make(model), model) == {"lr": pytest.approx(0.1)}


def test_a_lightning_module_s_example_is_its_input(work: Path) -> None:
    source = (
        "import torch\n"
        "class Net(torch.nn.Linear):\n"
        "    def __init__(self):\n"
        "        super().__init__(2, 3)\n"
        "        self.example_input_array = torch.ones(5, 2)\n"
    )
    target = load(write(work, source) + ":Net")
    assert target.fixed_batch
    assert target.choices["inputs"] == "example_input_array of the model"
    first, second = target.make_inputs(None), target.make_inputs(None)
    assert first.shape == (5, 2) and first is not second
    beside = (
        source + "def get_inputs(batch_size): return (torch.ones(batch_size, 2),)\n"
    )
    target = load(write(work, beside, "beside.py") + ":Net")
    assert not target.fixed_batch
    assert target.make_inputs(7)[0].shape == (7, 2)


LOCKED = (
    "import threading\n"
    "import torch\n"
    "class Locked(torch.nn.Module):\n"
    "    def __init__(self):\n"
    "        super().__init__()\n"
    "        self.linear, self.lock = torch.nn.Linear(4, 3), threading.Lock()\n"
    "    def forward(self, x):\n"
    "        return self.linear(x).tanh()\n"
    "def get_inputs(batch_size):\n"
    "    return (torch.randn(batch_size, 4),)\n"
)


def test_a_model_that_cannot_be_copied_is_built_anew(work: Path) -> None:
    made_by = LOCKED + "def get_model(): return Locked()\n"
    target = load(write(work, made_by))
    made = target.fresh_model("forward", shares_parameters=True)
    inputs = target.inputs("forward", 2)
    assert torch.equal(made(*inputs), target.model(*inputs))
    assert made is not target.model
    with pytest.raises(TargetError, match="the model cannot be copied") as caught:
        load(write(work, LOCKED + "net = Locked()\n", "net.py") + ":net").fresh_model(
            "forward"
        )
    assert "get_model()" in str(caught.value.hint)


@pytest.mark.usefixtures("_dynamo_as_it_was")
def test_a_model_that_cannot_be_copied_goes_through_probe_and_trials(
    work: Path, try_it: Try
) -> None:
    write(work, LOCKED + "def get_model(): return Locked()\n")
    assert try_it("model.py", kind="probe")["outcome"] == "ok"
    for phase in ("forward", "train_step"):
        said = try_it("model.py", phase, batch_size=4)
        assert said["outcome"] == "ok", said


def test_an_eager_forward_side_shares_the_parameters_and_nothing_else() -> None:
    target = load(PLAIN)
    own = {id(p) for p in target.model.parameters()}
    draws = target.make_inputs(4), target.make_inputs(4)
    side = Reference(target, "forward", draws, 0, []).another_side()
    assert {id(p) for p in side.model.parameters()} == own
    assert side.model is not target.model
    trained = Reference(target, "train_step", draws, 0, []).another_side()
    assert own.isdisjoint(id(p) for p in trained.model.parameters())


def test_a_file_sees_no_arguments_of_the_process_that_imports_it(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sys, "argv", ["autocompile", "tune", "model.py", "--budget", "5m"]
    )
    text = "import argparse, sys, torch\nparser = argparse.ArgumentParser()\n"
    text += "parser.add_argument('--width', type=int, default=5)\nargs = parser.parse_args()\n"
    text += "def get_model(): return torch.nn.Linear(args.width, 1)\n"
    text += "def get_inputs(n): return torch.zeros(n, 5)\n"
    assert load(write(work, text)).model.in_features == 5


SCRIPTED = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.rest = torch.jit.script(torch.nn.Linear(4, 2))
    def forward(self, x):
        return self.rest(self.first(x))
def get_model(): return Net()
def whole(): return torch.jit.trace(torch.nn.Linear(4, 2), torch.zeros(1, 4))
def get_inputs(batch_size): return (torch.randn(batch_size, 4),)
"""


def test_a_model_of_torch_jit_is_refused_in_words_and_a_part_is_not(
    work: Path, try_it: Try
) -> None:
    write(work, SCRIPTED)
    error = error_of("model.py:whole")
    assert "compiled by torch.jit" in str(error) and "parts may have it" in str(error)
    result = try_it("model.py", kind="probe")
    assert result["outcome"] == "ok", result["message"]


LAZY = """
import torch
def get_model():
    return torch.nn.Sequential(torch.nn.LazyLinear(6), torch.nn.LazyBatchNorm1d(), torch.nn.LazyLinear(2))
def get_inputs(batch_size): return (torch.randn(batch_size, 3),)
"""  # noqa: E501


@pytest.mark.parametrize("phase", ["forward", "optimizer_step"])
def test_layers_that_find_out_their_widths_are_called_once(
    work: Path, try_it: Try, phase: str
) -> None:
    target = load(write(work, LAZY))
    assert next(target.model.parameters()).shape == (6, 3)
    assert target.model.training and target.model[1].num_batches_tracked == 0
    result = try_it("model.py", phase)
    assert result["outcome"] == "ok", result["message"]


ODD = """
import torch
from types import SimpleNamespace

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(20, 4, sparse=True)
        self.net, self.calls = torch.nn.Linear(4, 4), 0
    def forward(self, ids):
        self.calls += 1
        return self.net(self.table(ids)) * self.calls

class Growing(torch.nn.Linear):
    def forward(self, x, past):
        past.keys.append(x)
        return super().forward(torch.stack(past.keys).sum(0))

class Hooked(Net):
    def __init__(self):
        super().__init__()
        def keep(module, inputs, output): self.seen = output * 2
        self.seen = None
        self.net.register_forward_hook(keep)
    def forward(self, ids):
        super().forward(ids)
        seen, self.seen = self.seen, None
        return torch.zeros(len(ids), 4) if seen is None else seen

class Silent(Net):
    def forward(self, ids):
        super().forward(ids)

class Scheduled(torch.optim.AdamW):
    def __init__(self, params):
        super().__init__(params)
        self.taken = 0
    def step(self, closure=None):
        self.taken += 1
        for group in self.param_groups:
            group["lr"] = 1e-3 * self.taken
        return super().step(closure)

def get_inputs(batch_size): return (torch.randint(20, (batch_size,)),)
def get_optimizer(model): return OPTIMIZER
def get_model(): return MODEL
"""


def odd(
    folder: Path,
    optimizer: str = "Scheduled(model.net.parameters())",
    model: str = "Net()",
):
    text = ODD.replace("OPTIMIZER", optimizer).replace("MODEL", model)
    if model.startswith("Growing"):
        text += (
            "def get_inputs(n): return (torch.zeros(n, 4), SimpleNamespace(keys=[]))\n"
        )
    return write(folder, text)


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (
            "torch.optim.SparseAdam(model.table.parameters())",
            "SparseAdam does not support dense",
        ),
        ("torch.optim.LBFGS(model.net.parameters())", "'closure'"),
    ],
)
def test_a_phase_that_cannot_work_is_left_out_in_a_sentence_unless_it_is_asked_for(
    work: Path, try_it: Try, optimizer: str, words: str
) -> None:
    target = odd(work, optimizer)
    told = try_it(target, kind="probe", phases=None)["target"]
    assert told["phases"] == ["forward"]
    assert told["choices"]["optimizer_step"].startswith(
        "not tuned, since it fails in eager mode"
    )
    assert words in told["choices"]["optimizer_step"]
    result = try_it(target, kind="probe", phases=["optimizer_step"])
    assert result["outcome"] != "ok" and words in result["message"]


def test_sparse_gradients_are_compared(work: Path, try_it: Try) -> None:
    model = "torch.nn.Sequential(torch.nn.Embedding(20, 4, sparse=True), torch.nn.Linear(4, 4))"
    target = odd(work, "torch.optim.SparseAdam(model[0].parameters())", model)
    result = try_it(target, "train_step")
    assert result["outcome"] == "ok", result["message"]


def test_counts_of_an_optimizer_and_of_a_module_are_put_back(
    work: Path, try_it: Try
) -> None:
    config = CompileConfig("eager", optimizer="foreach")
    for phase in ("forward", "optimizer_step"):
        result = try_it(odd(work), phase, config=config.to_dict())
        assert result["outcome"] == "ok", result["message"]


def test_a_number_for_which_each_call_is_compiled_anew_is_named(
    work: Path, try_it: Try
) -> None:
    result = try_it(odd(work), "forward")
    assert result["outcome"] == "recompile_limit"
    assert (
        "the number self.calls changes" in result["message"]
        and "model.py" in result["message"]
    )


def test_inputs_of_any_kind_have_shapes_and_end() -> None:
    loop = SimpleNamespace(x=torch.zeros(2, 3), np=sys, parts=[torch.zeros(1)])
    loop.self = loop
    found = _shapes_in((loop, {"a": torch.zeros(4)}))
    assert found == {"[0].x": (2, 3), "[0].parts[0]": (1,), "[1]['a']": (4,)}


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("Growing(4, 4)", "changes its own inputs"),
        ("Hooked()", "a copy of the model does not compute what the model does"),
        ("Silent()", "forward returns no tensor"),
    ],
)
def test_what_fails_every_setting_is_said_once_before_any_is_tried(
    work: Path, try_it: Try, model: str, words: str
) -> None:
    result = try_it(odd(work, model=model), kind="probe", phases=["forward"])
    assert result["outcome"] != "ok" and words in result["message"], result


def test_a_copy_that_no_optimizer_takes_is_built_anew(work: Path, try_it: Try) -> None:
    """As of a model with a part of torch.jit."""
    write(work, SCRIPTED)
    target = load("model.py")
    assert all(p.is_leaf for p in target.fresh_model("optimizer_step").parameters())
    result = try_it(
        "model.py", "optimizer_step", config=CompileConfig("eager").to_dict()
    )
    assert result["outcome"] == "ok", result["message"]
