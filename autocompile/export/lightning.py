"""PyTorch Lightning: the compiled model, ``configure_optimizers`` and the Trainer."""

from __future__ import annotations

from autocompile.export.choices import Report
from autocompile.export.lines import (
    compile_lines,
    imports,
    made_optimizer,
    model_lines,
    process_lines,
)
from autocompile.export.stacks import settings_of
from autocompile.export.text import program

__all__ = ["export"]

_PRECISION = {"bfloat16": "bf16-mixed", "float16": "16-mixed"}
# Module.compile() keeps keys, but Dynamo skips classes of torch.nn, such as Sequential.
_KEYS = '# Inside your module, keys of checkpoints get "_orig_mod."; autocompile.apply keeps them.'
_OPTIMIZERS = """def configure_optimizers(self):  # of your LightningModule
    return {made}
"""


def export(report: Report) -> str:
    """Code for ``model``, the LightningModule or a module that it calls.

    Raises:
        ExportError: Lightning cannot express the result.
    """
    settings = settings_of(report, "Lightning")
    model, step = settings.model, settings.optimizer
    made = made_optimizer(report, step.optimizer, "self") if step.optimizer != "default" else ""
    lost = settings.lost("Lightning", optimizer=bool(made))
    lines = [*process_lines(model), *model_lines(model)]
    lines += [_KEYS] * (not model.is_eager and model.scope == "full") + compile_lines(model)
    if not lines and step.optimizer == "default" and model.autocast == "none":
        lines = ["# Nothing is faster than eager mode: leave it as it is."]
    precision = _PRECISION.get(model.autocast)
    needs_torch = made or any("torch." in line for line in lines)
    return program(
        settings.evidence + lost,
        "import torch" * bool(needs_torch)
        + "\nfrom pytorch_lightning import Trainer  # or from lightning" * bool(precision),
        "\n".join([*imports(report, model), *lines]) if lines else "",
        _OPTIMIZERS.format(made=made) if made else "",
        f'trainer = Trainer(precision="{precision}")' if precision else "",
    )
