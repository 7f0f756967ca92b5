"""Plain torch.compile: a script that runs as it is, with no import of autocompile."""

from __future__ import annotations

from autocompile.errors import ExportError
from autocompile.export.common import (
    PACKAGE_OF_BACKEND,
    Choice,
    Report,
    build_function,
    choices,
    comment,
    header,
    literal,
    not_carried,
    program,
    quoted,
)

__all__ = ["export"]

_FORWARD = '''def compile_forward(model):
    """The compiled model: call it in place of the model."""
    return torch.compile(model, **FORWARD)
'''

# An RLModule's own compile() takes other arguments, and its public forward_* methods switch
# between train and eval on each call: the function beneath is what RLlib compiles too.
_RL_FORWARD = '''def compile_{phase}(model):
    """Compile what model.{phase}() runs, in place."""
    function = model._{phase}
    model._{phase} = torch.compile(function, **{constant})
    return model
'''

# Optimizer.step breaks the graph by design, so it is wrapped.
_OPTIMIZER_STEP = '''def compile_optimizer_step(optimizer):
    """The compiled step: call it in place of optimizer.step()."""

    def step():
        optimizer.step()

    return torch.compile(step, **OPTIMIZER_STEP)
'''

_TRAIN_STEP = '''def compile_train_step(forward, loss, optimizer):
    """A compiled training step: step(inputs) gives the loss.

    forward(inputs) gives the output, loss(output, inputs) a tensor with one number.
    """

    def step(inputs):
        optimizer.zero_grad(set_to_none=True)
        value = loss(forward(inputs), inputs)
        value.backward()
        optimizer.step()
        return value.detach()

    return torch.compile(step, **TRAIN_STEP)


def call_model(model, inputs):
    """Forward pass of a training step."""
    if hasattr(model, "forward_train"):  # an RLModule of RLlib
        return model.forward_train(inputs)
    if isinstance(inputs, dict):
        return model(**inputs)
    if isinstance(inputs, (list, tuple)):
        return model(*inputs)
    return model(inputs)


def sum_of_outputs(output, inputs):
    """The sum of every floating output: put your own loss in its place."""
    leaves = [x for x in tree_leaves(output) if isinstance(x, torch.Tensor)]
    return sum(x.float().sum() for x in leaves if x.requires_grad)
'''

_FUNCTIONS = {
    "forward": _FORWARD,
    "forward_exploration": _RL_FORWARD,
    "forward_inference": _RL_FORWARD,
    "forward_train": _RL_FORWARD,
    "optimizer_step": _OPTIMIZER_STEP,
    "train_step": _TRAIN_STEP,
}

_NO_BUILD = comment(
    "The model was handed over as an object in Python: give it to the functions above."
)

_CALLS = {
    "forward": "compiled_model = compile_forward(model.eval())",
    "optimizer_step": "optimizer_step = compile_optimizer_step(optimizer)",
    "train_step": """forward = functools.partial(call_model, model.train())
train_step = compile_train_step(forward, sum_of_outputs, optimizer)""",
}


def export(report: Report) -> str:
    """A script with one function per phase; run as a program, it builds the model and compiles.

    Raises:
        ExportError: no phase has a result, or a setting is more than arguments of torch.compile.
    """
    found = choices(report)
    faster = [choice for choice in found.values() if choice.config is not None]
    for choice in found.values():
        _demand_form(choice)
    device = str(report["environment"].get("device") or "cpu")
    build = build_function(report, "model" if device == "cpu" else f"model.to({quoted(device)})")
    phases = [block for choice in found.values() for block in _phase(choice)]
    main = _main(report, list(found.values())) if build else _NO_BUILD
    top = header(report, "torch.compile settings")
    return program(top, _imports(faster), *phases, build, main)


def _demand_form(choice: Choice) -> None:
    if choice.phase not in _FUNCTIONS:
        raise ExportError(f"the phase {choice.phase!r} has no form in plain torch")
    carried = ("backend", "mode", "options", "fullgraph", "dynamic")
    if choice.config and (lost := not_carried(choice.config, carried)):
        raise ExportError(
            f"the best setting of {choice.phase} is more than arguments of torch.compile",
            f"it also has {', '.join(lost)}",
            hint="autocompile export last --to json",
        )


def _imports(faster: list[Choice]) -> str:
    backends = {choice.config.backend for choice in faster if choice.config}
    packages = sorted({PACKAGE_OF_BACKEND[b] for b in backends & PACKAGE_OF_BACKEND.keys()})
    lines = [f"import {name}  # noqa: F401  (registers a backend)\n" for name in packages]
    lines = sorted([*lines, "import torch\n"])
    if any(choice.phase == "train_step" for choice in faster):
        lines = ["import functools\n\n", *lines, "from torch.utils._pytree import tree_leaves\n"]
    return "".join(lines)


def _constant(choice: Choice) -> str:
    return choice.phase.upper()


def _phase(choice: Choice) -> list[str]:
    if choice.config is None:
        state = "keep eager" if choice.verdict == "keep_eager" else "failed"
        return [comment(f"{choice.phase}: {state}, left uncompiled: {choice.evidence}")]
    arguments = literal(choice.config.compile_kwargs(), "")
    return [
        comment(f"{choice.phase}: {choice.evidence}") + f"{_constant(choice)} = {arguments}",
        _FUNCTIONS[choice.phase].format(phase=choice.phase, constant=_constant(choice)),
    ]


def _main(report: Report, found: list[Choice]) -> str:
    lines = ['if __name__ == "__main__":', "    model = build_model()"]
    phases = {choice.phase for choice in found if choice.config is not None}
    if phases & {"optimizer_step", "train_step"}:
        measured = report["target"].get("choices", {}).get("optimizer", "Adam with its defaults")
        lines += comment(f"Put your own optimizer here; measured: {measured}.", "    ").splitlines()
        lines += ["    optimizer = torch.optim.Adam(model.parameters())"]
    for choice in found:
        lines += _applied(choice)
    return "\n".join(lines)


def _applied(choice: Choice) -> list[str]:
    if choice.config is None:
        why = "nothing is faster" if choice.verdict == "keep_eager" else "no setting worked"
        return [f'    print("{choice.phase}: left uncompiled, {why}")']
    call = _CALLS.get(choice.phase, f"model = compile_{choice.phase}(model)")
    return [
        *(f"    {line}" for line in call.splitlines()),
        f'    print("{choice.phase}: torch.compile with", {_constant(choice)})',
    ]
