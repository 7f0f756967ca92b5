"""``autocompile init``: a file to start from."""

from pathlib import Path
from typing import Annotated

import typer

from autocompile.cli.output import write
from autocompile.errors import UsageError

__all__ = ["TEMPLATE", "init"]

TEMPLATE = '''"""A model for autocompile: plain functions, nothing to import from autocompile."""

import torch


def get_model():
    return torch.nn.Sequential(
        torch.nn.Linear(64, 256),
        torch.nn.ReLU(),
        torch.nn.Linear(256, 8),
    )


def get_inputs(batch_size):
    # A tuple or list is called as model(*x), a dict as model(**x), anything else as model(x).
    return (torch.randn(batch_size, 64),)


# Optional; without it: torch.optim.Adam(model.parameters())
# def get_optimizer(model):
#     return torch.optim.SGD(model.parameters(), lr=0.1)


# Optional; without it: the sum of every floating output
# def get_loss(output, inputs):
#     return output.square().mean()


# Optional; without it outputs must agree within a tolerance that fits their dtype (--tolerance).
# Called with eager's and compiled's outputs of the same call: raise or return False to refuse.
# def check(expected, actual):
#     torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)
'''


def init(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="the file to write")] = Path(
        "model.py"
    ),
) -> None:
    """Write a file to start from, with get_model() and get_inputs()."""
    if path.exists():
        raise UsageError(f"{path} exists already", hint=f"autocompile check {path}")
    write(path, TEMPLATE)
    from autocompile.store import runs

    typer.echo(f"wrote {path}\nNext    {runs.tuning(str(path), {})}")
