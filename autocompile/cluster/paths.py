"""The folder of a station on its machine: the target's files, jobs and compiler caches.

A driver's paths mean nothing here. Those in a request are replaced when it arrives, and those of
this folder in what is sent back, so that users read their own.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from autocompile.store.files import hold, is_forgotten, is_ours, make_folder, write_json
from autocompile.store.record import AT_WORK

__all__ = ["StationFolder"]

_PREFIX = "autocompile-station-"
_SENT_BACK = ("log.txt", AT_WORK)
_CACHES = {"TORCHINDUCTOR_CACHE_DIR": "", "TRITON_CACHE_DIR": "triton"}


class StationFolder:
    """A temporary folder.

    Args:
        files: of the target, base64 by their path under the driver's ``place``.
        place: absolute path on the driver's machine.
        run: the same for the stations of one run, and for no others.
    """

    def __init__(self, files: Mapping[str, str], place: str, run: str = "") -> None:
        for forgotten in filter(is_forgotten, _all()):  # of stations that were killed
            shutil.rmtree(forgotten, ignore_errors=True)
        self._run = run
        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{run}-")).resolve()
        self._held = hold(self.path)
        self._place, self._files = place, self.path / "files"
        make_folder(self._files)
        for name, content in files.items():
            path = (self._files / name).resolve()
            if self._files not in path.parents:
                raise ValueError(f"{name} leads out of the station's folder")
            make_folder(path.parent)
            path.write_bytes(base64.b64decode(content))
        self.toolchain = self.path / "toolchain"
        os.chdir(self._files)  # trials import from here, as they would in the driver's folder

    def prepare(self, number: int, request: Mapping[str, Any]) -> Path:
        """Write the request of a job into a folder of its own, with its paths replaced."""
        request = dict(request)
        if str(request.get("target", "")).startswith(self._place + os.sep):
            # Exported code names the target's folder too.
            own = ("target", "sides")
            request |= {n: self._inward(request[n]) for n in own if n in request}
        if request.get("toolchain"):
            request["toolchain"] = str(self.toolchain)
        if sides := request.get("sides"):
            request["sides"] = [self._side(side) for side in sides]
        folder = self.path / "jobs" / f"{number}"
        shutil.rmtree(folder, ignore_errors=True)
        make_folder(folder)
        write_json(folder / "request.json", request)
        return folder

    def _side(self, side: Mapping[str, Any]) -> dict[str, Any]:
        """With its cache here: its own, or a copy of that of another station of this host."""
        cache = self._cache(Path(side["cache"]).name)
        if not cache.is_dir():
            self._fetch(cache)
        is_warm = side["is_warm"] and cache.is_dir()
        if not cache.is_dir():  # compiled on another host: again here
            self._seed(cache)
        return {**side, "cache": str(cache), "is_warm": is_warm}

    def environment(self, number: int, sent: Mapping[str, str]) -> dict[str, str]:
        """A job's variables, with an empty compiler cache if it has one."""
        if not _CACHES.keys() & sent.keys():
            return dict(sent)
        cache = self._cache(f"{number:04d}")
        shutil.rmtree(cache, ignore_errors=True)
        self._seed(cache)
        return {**sent, **{name: str(cache / below) for name, below in _CACHES.items()}}

    def drop_caches(self, kept: Collection[str]) -> None:
        """Remove the compiler caches whose names are not among these."""
        with contextlib.suppress(OSError):
            for cache in (self.path / "cache").iterdir():
                if cache.name not in kept:
                    shutil.rmtree(cache, ignore_errors=True)

    def results(self, number: int) -> dict[str, str]:
        """The files of a job that the driver reads; the folder is gone afterwards."""
        folder, found = self.path / "jobs" / f"{number}", {}
        for name in _SENT_BACK:
            with contextlib.suppress(OSError):
                found[name] = (folder / name).read_text("utf-8", "replace")
        shutil.rmtree(folder, ignore_errors=True)
        return found

    def outward(self, line: str) -> str:
        """A message with the driver's paths of the target's files in place of ours."""
        return line.replace(str(self._files), json.dumps(self._place)[1:-1])

    def _inward(self, data: Any) -> Any:
        """JSON with our paths of the target's files in place of the driver's."""
        text = json.dumps(data).replace(json.dumps(self._place)[1:-1], str(self._files))
        return json.loads(text)

    def remove(self) -> None:
        os.close(self._held)
        shutil.rmtree(self.path, ignore_errors=True)

    def _cache(self, name: str) -> Path:
        return self.path / "cache" / name

    def _fetch(self, cache: Path) -> None:
        """Copy a cache of that name from another station of the run, if one has it."""
        part = cache.with_name(f"{cache.name}.part")
        for folder in filter(is_ours, _all(f"{self._run}-*")):
            with contextlib.suppress(OSError, shutil.Error):  # it may end meanwhile
                shutil.copytree(folder / "cache" / cache.name, part)
                part.replace(cache)
                return
            shutil.rmtree(part, ignore_errors=True)

    def _seed(self, cache: Path) -> None:
        if self.toolchain.is_dir():
            shutil.copytree(self.toolchain, cache)
        else:
            make_folder(cache)


def _all(which: str = "*") -> Iterator[Path]:
    return Path(tempfile.gettempdir()).glob(f"{_PREFIX}{which}")
