"""Hugging Face Transformers: ``TrainingArguments`` with the tuned values."""

from __future__ import annotations

from autocompile.export.accelerate import model_choice
from autocompile.export.common import (
    Report,
    comment,
    header,
    literal,
    not_carried,
    program,
    wrapped,
)

__all__ = ["export"]

_FIELDS = (
    "TrainingArguments has fields for the backend and the mode only: it cannot carry fullgraph, "
    "dynamic or options. `accelerate launch` forces dynamic=False unless told otherwise."
)
_WARN = '    print("\\n".join(WARNING), file=sys.stderr)\n'
_MAIN = """
if __name__ == "__main__":
{warn}    fields = {{k: v for k, v in vars(args).items() if k.startswith("torch_compile")}}
    print(json.dumps(fields))
"""


def export(report: Report) -> str:
    """A script that makes ``args`` and prints its ``torch_compile`` fields when it is run.

    Raises:
        ExportError: the result has no form in the Trainer, which compiles through Accelerate.
    """
    choice = model_choice(report, "Transformers")
    lost = not_carried(choice.config, ("backend", "mode")) if choice.config else []
    warning = [
        line
        for name in lost
        for line in wrapped(f"WARNING: TrainingArguments cannot carry {name}: dropped.", 76)
    ]
    # A backend or a mode alone turns compiling on, so neither stands beside False.
    fields: dict[str, str | bool] = {"output_dir": "out", "torch_compile": False}
    if choice.config is not None and not choice.config.is_eager:
        fields["torch_compile"] = True
        fields["torch_compile_backend"] = choice.config.backend.lower()
        fields["torch_compile_mode"] = choice.config.mode
    fields["report_to"] = "none"
    body = "".join(f"    {k}={literal(v)},\n" for k, v in fields.items())
    top = header(report, "Trainer settings") + "#\n" + comment(_FIELDS)
    notes = comment(f"{choice.phase}: {choice.evidence}")
    if choice.config is not None:
        notes += comment("On a CUDA device, torch_compile turns TF32 on unless tf32 is given.")
    return program(
        top + "".join(f"# {line}\n" for line in warning),
        "import json" + ("\nimport sys" if warning else ""),
        "from transformers import TrainingArguments",
        f"WARNING = {literal(warning, '')}" if warning else "",
        f"{notes}args = TrainingArguments(\n{body})",
        _MAIN.format(warn=_WARN if warning else ""),
    )
