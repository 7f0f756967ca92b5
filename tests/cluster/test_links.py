"""What a session of Ray that is there already is sent, without a cluster."""

from __future__ import annotations

import types
from typing import Any

import pytest

from autocompile.cluster.links import _with_sent, connected
from autocompile.errors import UsageError

pytest.importorskip("ray")
import ray
from ray._private.runtime_env import py_modules
from ray.exceptions import RuntimeEnvSetupError


def test_the_package_is_sent_beside_the_sessions_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(py_modules, "upload_py_modules_if_needed", lambda found, **_: found)
    assert _with_sent("package", {"py_modules": ["own"]}) == {"py_modules": ["own", "package"]}


@pytest.mark.parametrize(
    "error",
    [RuntimeEnvSetupError("Failed to upload:\n\nthe GCS is full"), OSError("the GCS is full")],
)
def test_an_upload_that_fails_is_told_in_one_paragraph(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(py_modules, "upload_py_modules_if_needed", fail)
    with pytest.raises(UsageError, match=r"cannot send autocompile .*the GCS is full") as caught:
        _with_sent("package", {})
    assert "\n" not in caught.value.what


def test_a_ray_that_sends_in_another_way_has_it_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(py_modules, "upload_py_modules_if_needed", lambda found: found)
    assert _with_sent("package", {}) == {}
    monkeypatch.delattr(py_modules, "upload_py_modules_if_needed")
    assert _with_sent("package", {}) == {}


def test_another_cluster_than_the_one_of_this_process_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = types.SimpleNamespace(gcs_address="10.0.0.1:6379", runtime_env={})
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: here)
    words = "is connected to the Ray cluster at 10.0.0.1:6379, not to 10.0.0.2:6379"
    with pytest.raises(UsageError, match=words), connected("10.0.0.2:6379"):
        pass
