"""Hugging Face Accelerate: a ``TorchDynamoPlugin`` with the tuned values."""

from __future__ import annotations

from autocompile import backends
from autocompile.config import CompileConfig
from autocompile.errors import ExportError
from autocompile.export.common import (
    Choice,
    Report,
    build_function,
    choices,
    comment,
    header,
    is_rl,
    literal,
    not_carried,
    program,
    wrapped,
)

__all__ = ["ACCELERATE_READ", "BACKENDS", "export", "model_choice"]

ACCELERATE_READ = "1.15"
"""The version of accelerate that :data:`BACKENDS` was read from."""

BACKENDS = (
    "NO",
    "EAGER",
    "AOT_EAGER",
    "INDUCTOR",
    "AOT_TS_NVFUSER",
    "NVPRIMS_NVFUSER",
    "CUDAGRAPHS",
    "OFI",
    "FX2TRT",
    "ONNXRT",
    "TENSORRT",
    "AOT_TORCHXLA_TRACE_ONCE",
    "TORCHXLA_TRACE_ONCE",
    "TVM",
    "HPU_BACKEND",
    "NEURON",
)
"""The names of ``accelerate.utils.DynamoBackend``; it takes no other."""

_CARRIED = ("backend", "mode", "options", "fullgraph", "dynamic")
_REGIONS = (
    "WARNING: Accelerate's regions are not those that were measured: of a model's blocks it knows "
    "the entries of an nn.ModuleList only, and it compiles all that is outside them too."
)


def model_choice(report: Report, stack: str) -> Choice:
    """The choice for a model's forward pass: all that Accelerate and the Trainer compile.

    Raises:
        ExportError: an RLModule, no such phase, or a backend that Accelerate refuses.
    """
    found = choices(report)
    if is_rl(report):
        raise ExportError(
            f"{stack} has no form for an RLModule",
            "it compiles model.forward(), which RLlib does not call: it calls forward_exploration()"
            ", forward_inference() and forward_train()",
            hint="autocompile export last --to rllib",
        )
    present = [found[name] for name in ("train_step", "forward") if name in found]
    usable = [choice for choice in present if choice.verdict != "failed"]
    if not usable:
        raise ExportError(
            f"{stack} has no form for this result: it compiles the model's forward pass",
            f"phases with a result: {', '.join(n for n in found if found[n].verdict != 'failed')}",
            hint="autocompile export last --to python",
        )
    choice = usable[0]
    config = choice.config
    if config and not config.is_eager and config.backend.upper() not in BACKENDS:
        raise ExportError(
            f"{stack} does not take the backend {config.backend!r}",
            f"accelerate {ACCELERATE_READ} knows: {', '.join(BACKENDS).lower()}",
            hint="autocompile export last --to python",
        )
    if config and not backends.BACKENDS.get(config.backend, backends.Backend()).trains:
        raise ExportError(
            f"{stack} trains, and the backend {config.backend} computes no gradients",
            hint="autocompile export last --to python",
        )
    return choice


def export(report: Report) -> str:
    """A script that makes the plugin and the Accelerator, and prepares the target's model.

    Raises:
        ExportError: the result has no form in Accelerate.
    """
    choice = model_choice(report, "Accelerate")
    warning = [line for text in _warnings(choice.config) for line in wrapped(text, 76)]
    plugin, setting = _plugin(choice.config)
    build = build_function(report)
    notes = comment(f"{choice.phase}: {choice.evidence}")
    if choice.config is not None:
        if choice.phase == "train_step":
            notes += comment("Accelerate compiles the forward pass and its backward only.")
        notes += comment(_TF32)
    warn = '    print("\\n".join(WARNING), file=sys.stderr)\n' if warning else ""
    return program(
        header(report, "Accelerate settings") + "".join(f"# {line}\n" for line in warning),
        "import sys" if warn and build else "",
        "from accelerate import Accelerator\nfrom accelerate.utils import TorchDynamoPlugin",
        f"WARNING = {literal(warning, '')}" if warn and build else "",
        notes + plugin,
        build,
        _MAIN.format(warn=warn, phase=choice.phase, setting=setting) if build else _NO_BUILD,
    )


def _warnings(config: CompileConfig | None) -> list[str]:
    if config is None:
        return []
    lost = not_carried(config, (*_CARRIED, "scope"))
    regions = [_REGIONS] if config.scope == "regional" else []
    return [f"WARNING: Accelerate cannot carry {name}." for name in lost] + regions


_TF32 = (
    "On a CUDA device in fp32, Accelerate turns TF32 on for matmuls as soon as a backend is "
    "named: numbers differ from eager's a little, and a part of the gain may come from there."
)
_MAIN = """
if __name__ == "__main__":
{warn}    accelerator = Accelerator(dynamo_plugin=plugin)
    model = accelerator.prepare(build_model())
    print("{phase}: {setting}", plugin.to_kwargs())
"""
_NO_BUILD = """
accelerator = Accelerator(dynamo_plugin=plugin)
# The model was handed over as an object in Python: accelerator.prepare(model) compiles it.
"""


def _plugin(config: CompileConfig | None) -> tuple[str, str]:
    """Source that makes the plugin, and how to call the result.

    Every field is given, since a missing one is read from the environment.
    """
    if config is None or config.is_eager:
        return 'plugin = TorchDynamoPlugin(backend="no")\n', "left uncompiled"
    fields = {
        "backend": config.backend.lower(),
        "mode": config.mode,
        "fullgraph": config.fullgraph,
        "dynamic": config.dynamic,
        "options": dict(config.options) or None,
        "use_regional_compilation": config.scope == "regional",
    }
    text = "plugin = TorchDynamoPlugin(\n"
    text += "".join(f"    {k}={literal(v, '    ')},\n" for k, v in fields.items()) + ")\n"
    if config.dynamic is None:
        text += comment(
            "`accelerate launch` sets ACCELERATE_DYNAMO_USE_DYNAMIC, which turns None into "
            "False (or True): put it back."
        )
        text += "plugin.dynamic = None\n"
    return text, "torch.compile with"
