"""The parent's side of the zygote: a warm process that forks a trial in milliseconds.

Importing torch, Dynamo and Inductor takes two to seven seconds, and every trial needs them.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autocompile.execute.child import Child
from autocompile.processes import MARKER

__all__ = ["Zygote", "ZygoteError"]

_PATIENCE_S = 120.0  # to import everything on a slow disk
_GROWTH = 2.0  # more memory than this many times its first, and a new one takes its place


class ZygoteError(Exception):
    """There is no zygote to fork from; the text says why.

    Args:
        reason: in words.
        is_unfit: it said so itself; otherwise it is dead.
    """

    def __init__(self, reason: str, is_unfit: bool = False) -> None:
        self.is_unfit = is_unfit
        super().__init__(reason)


class Zygote:
    """Starts a zygote and talks to it over a socket pair; does not wait until it is ready.

    Args:
        python: the interpreter.
        variables: of the environment, on top of the parent's.

    Raises:
        ZygoteError: it could not be started.
    """

    def __init__(self, python: str, variables: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair()
        self._socket = ours
        self._words = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the process)
        environment = {
            **os.environ,
            **variables,
            # torch asks the driver's library and not the driver whether there is a GPU: a process
            # that has opened the driver cannot fork.
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            MARKER: "zygote",
        }
        try:
            self._process = subprocess.Popen(
                [python, "-m", "autocompile.trial.zygote", str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=self._words,
                stderr=self._words,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env=environment,
            )
        except OSError as error:
            ours.close()
            raise ZygoteError(f"it cannot be started: {error}") from None
        finally:
            theirs.close()
        ours.settimeout(_PATIENCE_S)
        self._lines = ours.makefile("rb")
        self._unanswered = 1  # it says by itself when it is ready, or why it never will be
        self._size = float("inf")

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def warm(self, modules: Sequence[str], toolchain: Path | None) -> None:
        """Have it import modules and, with a toolchain, compile something small on the CPU.

        Returns at once; the next :meth:`fork` waits for it and says how it went.

        Args:
            modules: by name.
            toolchain: where it leaves what every compiler cache starts with; None for nothing.

        Raises:
            ZygoteError: it is dead.
        """
        place = None if toolchain is None else str(toolchain)
        self._send({"do": "warm", "modules": list(modules), "toolchain": place})
        self._unanswered += 1

    def fork(self, child: Child) -> None:
        """Fork a trial; fills in its ``warden`` and ``pidfd``.

        Raises:
            ZygoteError: it is dead, or it found itself not clean.
        """
        for _ in range(self._unanswered):
            self._unanswered -= 1
            self._size = self._answer()["memory_bytes"]
        try:
            here = os.getcwd()
        except OSError:  # somebody has removed it
            here = "/"
        request = {"do": "fork", "cwd": here, **child.arguments}
        self._send(request, child.pipes.theirs)
        child.warden = int(self._answer()["pid"])
        with contextlib.suppress(OSError, AttributeError):
            child.pidfd = os.pidfd_open(child.warden)
        child.forked = True

    def has_grown(self) -> bool:
        """Whether it holds much more memory than at first: time for a new one."""
        try:
            resident = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            return False
        return bool(resident * os.sysconf("SC_PAGE_SIZE") > _GROWTH * self._size)

    def close(self) -> None:
        """End it; trials that came from it end as well."""
        self._process.kill()
        self._process.wait()
        self._lines.close()
        self._socket.close()
        self._words.close()

    def _send(self, request: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        line = json.dumps(request).encode() + b"\n"
        try:
            sent = socket.send_fds(self._socket, [line], list(descriptors)) if descriptors else 0
            self._socket.sendall(line[sent:])
        except OSError as error:
            raise ZygoteError(f"it is gone: {error}") from None

    def _answer(self) -> dict[str, Any]:
        try:
            line = self._lines.readline()
            answer = json.loads(line) if line else {}
        except (OSError, ValueError) as error:
            raise ZygoteError(f"it does not answer: {error}") from None
        if not isinstance(answer, dict) or not answer:
            raise ZygoteError(f"it ended{self._last_words()}")
        if reason := answer.get("refused"):
            raise ZygoteError(str(reason), is_unfit=True)
        return answer

    def _last_words(self) -> str:
        self._words.seek(0)
        lines = self._words.read()[-4000:].decode("utf-8", "replace").strip().splitlines()
        return f": {lines[-1][:200]}" if lines else ""
