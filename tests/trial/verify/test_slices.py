"""How far tensors are apart, by the quick way and by the exact one."""

import math

import pytest
import torch

from autocompile.trial.verify import slices
from autocompile.trial.verify.slices import apart


def _pairs() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    drawn = torch.Generator().manual_seed(7)
    x = torch.randn(70, 40, generator=drawn)
    off = x + 1e-5 * torch.randn(70, 40, generator=drawn)
    masked = torch.where(x > 1, -1e9, x)
    infinite = torch.where(x > 1, -math.inf, x)
    wrong = off.clone()
    wrong[3] = 0.0
    return {
        "usual": (x, off),
        "the same": (x, x.clone()),
        "a wrong row": (x, wrong),
        "tiny": (x * 1e-25, off * 1e-25),
        "tiniest": (x * 1e-36, off * 1e-36),
        "large": (x * 1e25, off * 1e25),
        "largest": (x * 1e37, off * 1e37),
        "masked": (masked, masked + 1e-5),
        "infinite": (infinite, off),
        "infinite in both": (infinite, infinite + 1e-5),
        "not a number": (x, torch.where(x > 2, math.nan, off)),
        "one is huge": (x, torch.where(x > 2.5, 1e30, off)),
        "zero": (torch.zeros(70, 40), off),
        "both zero": (torch.zeros(70, 40), torch.zeros(70, 40)),
        "mostly zero": (torch.where(x > 2, x, 0.0), torch.where(x > 2, off, 0.0)),
        "bfloat16": (x.bfloat16(), off.bfloat16()),
        "empty": (x[:0], off[:0]),
        "one number": (x[0, 0], off[0, 0]),
    }


@pytest.mark.parametrize("name", _pairs())
def test_float32_says_what_float64_says(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    want, got = _pairs()[name]
    quick = apart(want, got)
    monkeypatch.setattr(slices, "_is_short", lambda x: False)
    exact = apart(want, got)
    for found, right in zip(
        (quick.error, quick.size, quick.squares),
        (exact.error, exact.size, exact.squares),
        strict=True,
    ):
        torch.testing.assert_close(found, right, rtol=1e-5, atol=0.0)


def test_one_rounding_of_one_number_is_seen() -> None:
    x = torch.randn(300, 1000, generator=torch.Generator().manual_seed(3))
    got = x.clone()
    got[200, 17] = torch.nextafter(x[200, 17], torch.tensor(9.0))
    far = apart(x, got)
    assert far.error[0] > 0
    rows = far.error[1:301]
    assert rows.nonzero().flatten().tolist() == [200]
