"""Hugging Face Transformers: a Trainer with the callback that applies a file of settings."""

from __future__ import annotations

from autocompile.export.choices import Report
from autocompile.export.stacks import with_callback

__all__ = ["export"]

_TRAINER = """# Leave torch_compile in its TrainingArguments at False: the callback compiles.
trainer = Trainer(model, args, callbacks=[TunedCallback("tuned.json")])
"""


def export(report: Report) -> str:
    """Code that makes a ``Trainer`` of ``model`` and ``args``.

    Raises:
        ExportError: an RLModule, or a setting that cannot train.
    """
    trainer = "from transformers import Trainer"
    return with_callback(report, "Transformers", trainer, _TRAINER)
