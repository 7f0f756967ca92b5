"""PyTorch Lightning: a Trainer with the callback that applies a file of settings."""

from __future__ import annotations

from autocompile.export.choices import Report
from autocompile.export.stacks import with_callback

__all__ = ["export"]

_TRAINER = """\
# module: the attribute of your LightningModule that was tuned; left out for all of it.
trainer = Trainer(callbacks=[TunedCallback("tuned.json", module="net")])
"""


def export(report: Report) -> str:
    """Code that makes a ``Trainer``.

    Raises:
        ExportError: an RLModule, or a setting that cannot train.
    """
    trainer = "from pytorch_lightning import Trainer  # or from lightning.pytorch"
    return with_callback(report, "Lightning", trainer, _TRAINER)
