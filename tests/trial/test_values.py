"""Trees of inputs: copies, and new values in the memory of old ones."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from autocompile.trial import values
from autocompile.trial.model.calls import Sample, Workload
from autocompile.trial.values import rewritten, tensors_by_path


def test_new_values_stand_where_the_old_ones_stood_and_no_version_tells() -> None:
    old, new = {"x": torch.zeros(4)}, {"x": torch.arange(4.0)}
    place, version = old["x"].data_ptr(), old["x"]._version
    got = rewritten(old, new)["x"]
    assert got.tolist() == [0, 1, 2, 3]
    assert got.data_ptr() == place
    assert got._version == version
    assert new["x"].data_ptr() != place


def test_what_does_not_fit_is_copied() -> None:
    shared = torch.zeros(1).expand(4)
    for old in (torch.zeros(5), torch.zeros(4, dtype=torch.float64), shared, None):
        new = torch.arange(4.0)
        got = rewritten((old,), (new,))[0]
        assert got.tolist() == [0, 1, 2, 3]
        assert got.data_ptr() != new.data_ptr()
    assert shared.tolist() == [0, 0, 0, 0]


def test_the_container_is_that_of_the_new_inputs() -> None:
    old = Sample([torch.zeros(2), torch.zeros(3)])
    got = rewritten(old, Workload([torch.ones(2), torch.ones(3)]))
    assert type(got) is Workload
    assert [x.tolist() for x in tensors_by_path(got).values()] == [[1, 1], [1, 1, 1]]


def test_copies_stay_on_a_gpu_that_has_room_and_count_as_spare(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its tensors are played: only where copies lie is asked."""
    free = 100 * 2**30
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, free))
    monkeypatch.setattr(values, "_spare", {})
    with FakeTensorMode():
        large = torch.empty(2**30, device="cuda")  # 4 GiB
        assert values.copies([large])[0].is_cuda
        assert values.spare_bytes(large.device) == 4 * 2**30 - values.USUAL_COPIES
        free = 10 * 2**30
        assert not values.copies([large])[0].is_cuda
