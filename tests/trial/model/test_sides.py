"""The sides of a trial: the user's call in eager mode, or by a setting."""

from __future__ import annotations

from pathlib import Path

import torch

from autocompile.settings.phases import OPTIMIZER_STEP
from autocompile.trial.model.load import build, import_target
from autocompile.trial.model.sides import make_side

WIDE = (
    "import torch\n"
    "def get_model():\n"
    "    return torch.nn.Sequential(torch.nn.Linear(1024, 1500), torch.nn.Linear(8, 1500))\n"
    "def get_inputs(batch_size):\n"
    "    return torch.randn(batch_size, 1024)\n"
)


def test_gradients_of_an_optimizer_step_are_equal_on_all_sides_and_repeat_nowhere(
    tmp_path: Path,
) -> None:
    """A side that mixed up rows or parameters would be found."""
    (tmp_path / "wide.py").write_text(WIDE)
    spec = str(tmp_path / "wide.py")
    target = build(spec, import_target(spec))
    sides = [make_side(target, OPTIMIZER_STEP, None) for _ in range(2)]
    first, second = (
        [p.grad for p in side.model.parameters() if p.grad is not None]
        for side in sides
    )
    assert len(first) == len(second) == 4
    for ours, theirs in zip(first, second, strict=True):
        assert torch.equal(ours, theirs)
    rows = torch.stack([row[:8] for g in (first[0], first[2]) for row in g])
    assert torch.unique(rows, dim=0).shape == rows.shape
    assert 0.009 < first[0].std() < 0.011
    # As a backward pass leaves them: torch keys compiled code by what is a view.
    assert not any(g._is_view() for g in first)
