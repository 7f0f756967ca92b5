"""Client of the fork server, a process that has imported torch and forks trials.

A fork takes milliseconds; importing torch, Dynamo and Inductor takes two to seven seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autocompile.protocol.processes import MARKER

__all__ = ["ForkServer", "ForkServerError"]

_MODULE = "autocompile.trial.fork_server"
_PATIENCE_S = 120.0  # to import everything on a slow disk
_FORK_S = 30.0  # to fork while idle
_MOST_BYTES = 1 << 16


class ForkServerError(Exception):
    """The fork server refused to fork, because that is not safe (``is_unfit``), or is dead."""

    def __init__(self, reason: str, is_unfit: bool = False) -> None:
        self.is_unfit = is_unfit
        super().__init__(reason)


class ForkServer:
    """Starts a fork server and talks to it over a socket pair, without waiting for it.

    Args:
        python: the interpreter.
        variables: of the environment, on top of the parent's.
        selector: the socket is registered here; call :meth:`listen` when it is readable.

    Raises:
        ForkServerError: it could not be started; raised by ``warm`` and ``fork`` too if it is dead.
    """

    def __init__(
        self, python: str, variables: Mapping[str, str], selector: selectors.BaseSelector
    ) -> None:
        ours, theirs = socket.socketpair()
        self._socket, self._selector = ours, selector
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the process)
        environment = {
            **os.environ,
            **variables,
            # torch looks for a GPU through NVML: a process with a CUDA context cannot fork.
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            MARKER: "fork_server",
        }
        try:
            self._process = subprocess.Popen(
                [python, "-m", _MODULE, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env=environment,
            )
        except OSError as error:
            ours.close()
            raise ForkServerError(f"the fork server cannot be started: {error}") from None
        finally:
            theirs.close()
        self.pid = self._process.pid
        selector.register(ours, selectors.EVENT_READ, self)
        self._rest = b""
        self._error: ForkServerError | None = None
        self._unanswered = 1  # it reports that it is ready, or why not, without a request
        self._asked_at = time.monotonic()
        self._has_to_prepare = False

    @property
    def is_busy(self) -> bool:
        """Whether it imports or compiles something, as of the last :meth:`listen`."""
        return self._unanswered > 0 and self._error is None and not self._is_overdue

    @property
    def _is_overdue(self) -> bool:
        return self._unanswered > 0 and time.monotonic() - self._asked_at > _PATIENCE_S

    def warm(self, modules: Sequence[str], toolchain: Path | None) -> None:
        """Request imports and, with a folder for the toolchain, a small compile on the CPU.

        Returns at once. The compile starts with the next :meth:`is_ready` or :meth:`prepare`.
        """
        place = None if toolchain is None else str(toolchain)
        self._ask({"do": "warm", "modules": list(modules), "toolchain": place})
        self._has_to_prepare |= toolchain is not None

    def prepare(self) -> None:
        """Start the compile that :meth:`warm` requested, once nothing else is to be done."""
        if self._has_to_prepare and not self._unanswered:
            self._has_to_prepare = False
            self._ask({"do": "prepare"})

    def is_ready(self) -> bool:
        """Whether it can fork a trial at once; see :meth:`prepare`.

        Raises:
            ForkServerError: it is dead, not safe to fork, or has not answered for too long.
        """
        self.listen()
        if self._error is not None:
            raise self._error
        self.prepare()
        if self._is_overdue:
            raise ForkServerError(f"the fork server has not answered for {_PATIENCE_S:.0f} s")
        return not self._unanswered

    def listen(self) -> None:
        """Read its answers without waiting; an error is kept for :meth:`is_ready`."""
        try:
            while self._error is None and self._answer(0.0) is not None:
                self._unanswered -= 1
                self._asked_at = time.monotonic()
        except ForkServerError as error:
            self._error = error
            self._unregister()  # a socket at its end is always readable: a busy-wait

    def fork(self, arguments: Mapping[str, Any], descriptors: Sequence[int]) -> int:
        """Fork a trial; the server must be ready. Returns the pid of its supervisor."""
        try:
            here = os.getcwd()
        except OSError:  # the directory was removed
            here = "/"
        self._send({"do": "fork", "cwd": here, **arguments}, descriptors)
        until = time.monotonic() + _FORK_S
        while (left := until - time.monotonic()) > 0:
            if (answer := self._answer(left)) is not None:
                return int(answer["pid"])
        raise ForkServerError(f"the fork server has not forked for {_FORK_S:.0f} s")

    def close(self) -> None:
        """Kill the server, and with it the trials that it forked."""
        self._process.kill()
        self._process.wait()
        self._unregister()
        self._socket.close()
        self._output.close()

    def _unregister(self) -> None:
        with contextlib.suppress(KeyError, ValueError):  # already unregistered
            self._selector.unregister(self._socket)

    def _ask(self, request: Mapping[str, Any]) -> None:
        self._send(request)
        if not self._unanswered:
            self._asked_at = time.monotonic()
        self._unanswered += 1

    def _send(self, request: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        line = json.dumps(request).encode() + b"\n"
        try:
            self._socket.settimeout(_FORK_S)
            sent = socket.send_fds(self._socket, [line], list(descriptors)) if descriptors else 0
            self._socket.sendall(line[sent:])
        except OSError as error:
            raise ForkServerError(f"the fork server is gone: {error}") from None

    def _answer(self, patience_s: float) -> dict[str, Any] | None:
        """Its next answer; None if it has not come, or not as a whole."""
        if b"\n" not in self._rest:
            try:
                self._socket.settimeout(patience_s)
                data = self._socket.recv(_MOST_BYTES)
            except (BlockingIOError, TimeoutError):
                return None
            except OSError as error:
                raise ForkServerError(f"the fork server does not answer: {error}") from None
            if not data:
                raise ForkServerError(f"the fork server exited{self._last_output()}")
            self._rest += data
        line, is_whole, rest = self._rest.partition(b"\n")
        if not is_whole:
            return None
        self._rest = rest
        try:
            answer = json.loads(line)
        except ValueError as error:
            raise ForkServerError(f"the fork server sent an invalid answer: {error}") from None
        if not isinstance(answer, dict):
            raise ForkServerError(f"the fork server sent an invalid answer: {answer!r}")
        if reason := answer.get("refused"):
            raise ForkServerError(str(reason), is_unfit=True)
        return answer

    def _last_output(self) -> str:
        self._output.seek(0)
        lines = self._output.read()[-4000:].decode("utf-8", "replace").strip().splitlines()
        return f": {lines[-1][:200]}" if lines else ""
