"""Starts trial processes under an interpreter: forks of its fork server, or new interpreters.

The fork server is a process that has imported torch and forks trials. A fork takes milliseconds;
importing torch, Dynamo and Inductor takes two to seven seconds.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.reduction import send_handle
from pathlib import Path
from selectors import EVENT_READ, BaseSelector
from typing import Any

from autocompile.errors import UsageError
from autocompile.execute.child import Child, Clock
from autocompile.execute.executor import Job
from autocompile.execute.trees import kill_tree
from autocompile.interpreters.started import lent_package
from autocompile.protocol.processes import MARKER
from autocompile.request import Isolation
from autocompile.store.record import Step

_MODULE = "autocompile.trial.fork_server"
_PATIENCE_S = 120.0  # to import everything on a slow disk
_FORK_S = 30.0  # to fork while idle
_END_S = 15.0  # to end what is below it
_MOST_DEATHS = 2  # of fork servers that died unexpectedly


class ForkServerError(Exception):
    """The fork server refused to fork, because that is not safe (``is_unfit``), or is dead."""

    def __init__(self, reason: str, is_unfit: bool = False) -> None:
        self.is_unfit = is_unfit
        super().__init__(reason)


class ForkServer:
    """Starts a fork server and talks to it in JSON messages, without waiting for it.

    Its connection is registered in ``selector``, with :meth:`listen` as data. All methods raise a
    ForkServerError if it could not be started or is dead.
    """

    def __init__(
        self, python: str, variables: Mapping[str, str], selector: BaseSelector
    ) -> None:
        self._connection, theirs = multiprocessing.Pipe()
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
            self._connection.close()
            raise ForkServerError(
                f"the fork server cannot be started: {error}"
            ) from None
        finally:
            theirs.close()
        self.attach(selector)
        self._error: ForkServerError | None = None
        # How long the answer to each request may take. It reports that it is ready, or why not,
        # without one.
        self._unanswered = deque([_PATIENCE_S])
        self._asked_at = time.monotonic()
        self._has_to_prepare = False
        self._modules: list[str] = []  # that it has been asked to import
        self._asked_for, self._marker = "", ""
        self.built = ""  # what the target is made of that its trials have
        self.not_built, self.was_ended = "", False  # why it could not build one
        self.step = Step.IMPORT  # of the build

    @property
    def is_busy(self) -> bool:
        """Whether it imports, builds or compiles something, as of the last :meth:`listen`."""
        is_at_work = bool(self._unanswered) and self._error is None
        return is_at_work and not self._is_overdue

    @property
    def _is_overdue(self) -> bool:
        waited_s = time.monotonic() - self._asked_at
        return bool(self._unanswered) and waited_s > self._unanswered[0]

    def warm(self, modules: Sequence[str], toolchain: Path | None) -> None:
        """Request imports and, with a folder for the toolchain, then a small compile; no wait."""
        place = None if toolchain is None else str(toolchain)
        self._modules = list(modules) or self._modules
        self._ask({"do": "warm", "modules": list(modules), "toolchain": place})
        self._has_to_prepare |= toolchain is not None

    def build(self, job: Job) -> None:
        """Request to build the target of a job for all trials; no wait.

        Where that is not safe they build it themselves.
        """
        self._asked_for, self.step = job.made_of, Step.IMPORT
        # By it all programs are found that the user's code has started, should it be left alive.
        self._marker = secrets.token_hex(8)
        limits = {"timeout_s": job.timeout_s, "memory_bytes": job.memory_limit_bytes}
        variables = {**job.environment, MARKER: self._marker}
        where = {"folder": str(job.folder.absolute()), "cwd": _here()}
        request = {"do": "build", "environment": variables, **where, **limits}
        # It keeps the limit of each step itself, and may have to begin twice.
        self._ask(request, _PATIENCE_S + 4 * job.timeout_s)

    def forget(self) -> None:
        """Request to drop the target that it has built, for another; no trial may be running."""
        self._ask({"do": "forget"})
        if self._modules:  # which only the copy has imported that built the target
            self.warm(self._modules, None)

    def is_ready(self) -> bool:
        """Whether it can fork a trial at once; a ForkServerError if it never will."""
        self.listen()
        if self._error is not None:
            raise self._error
        if self._is_overdue:
            raise ForkServerError(
                f"the fork server has not answered for {self._unanswered[0]:.0f} s"
            )
        return not self._unanswered

    def listen(self) -> None:
        """Read its answers without waiting; an error is kept for :meth:`is_ready`."""
        try:
            while self._error is None and (answer := self._answer(0.0)) is not None:
                self._take(answer)
            if self._has_to_prepare and not self._unanswered and self._error is None:
                self._has_to_prepare = False
                self._ask({"do": "prepare"})
        except ForkServerError as error:
            self._error = error
            self._unregister()  # what has ended is always readable: a busy-wait

    def _take(self, answer: dict[str, Any]) -> None:
        self._asked_at = time.monotonic()
        if "step" in answer:
            self.step = Step(answer["step"])
            return
        self._unanswered.popleft()
        if "built" in answer:
            self.built = self._asked_for if answer["built"] else ""
            self.not_built = str(answer.get("why", ""))
            self.was_ended = bool(answer.get("was_ended"))

    @property
    def was_to_build(self) -> bool:
        """Whether it has imported what a target does."""
        return bool(self._asked_for)

    def fork(self, arguments: Mapping[str, Any], descriptors: Sequence[int]) -> int:
        """Fork a trial; the server must be ready. Returns the pid of its supervisor."""
        self._send({"do": "fork", "cwd": _here(), **arguments}, descriptors)
        if (answer := self._answer(_FORK_S)) is None:
            raise ForkServerError(f"the fork server has not forked for {_FORK_S:.0f} s")
        return int(answer["pid"])

    def attach(self, selector: BaseSelector) -> None:
        self._selector = selector
        selector.register(self._connection, EVENT_READ, self.listen)

    def detach(self) -> bool:
        """Leave the selector; whether it is idle, so that another starter can have it."""
        self.listen()
        self._unregister()
        return self._error is None and not self._unanswered and not self._has_to_prepare

    def close(self) -> None:
        """End the server, and with it the trials that it forked and what built their target."""
        self._process.terminate()  # it ends what is below it first
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._marker:
            kill_tree(None, self._marker)
        self._unregister()
        self._connection.close()
        self._output.close()

    def _unregister(self) -> None:
        with contextlib.suppress(KeyError, ValueError):  # already unregistered
            self._selector.unregister(self._connection)

    def _ask(self, request: Mapping[str, Any], patience_s: float | None = None) -> None:
        self._send(request)
        if not self._unanswered:
            self._asked_at = time.monotonic()
        self._unanswered.append(_PATIENCE_S if patience_s is None else patience_s)

    def _send(
        self, request: Mapping[str, Any], descriptors: Sequence[int] = ()
    ) -> None:
        try:
            self._connection.send_bytes(json.dumps(request).encode())
            for descriptor in descriptors:
                send_handle(self._connection, descriptor, None)
        except OSError as error:
            raise ForkServerError(f"the fork server is gone: {error}") from None

    def _answer(self, patience_s: float) -> dict[str, Any] | None:
        """Its next answer; None if it has not come."""
        try:
            if not self._connection.poll(patience_s):
                return None
            answer: dict[str, Any] = json.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            raise ForkServerError(
                f"the fork server exited{self._last_output()}"
            ) from None
        if reason := answer.get("refused"):
            raise ForkServerError(str(reason), is_unfit=True)
        return answer

    def _last_output(self) -> str:
        self._output.seek(0)
        lines = (
            self._output.read()[-4000:].decode("utf-8", "replace").strip().splitlines()
        )
        return f": {lines[-1][:200]}" if lines else ""


def _here() -> str:
    try:
        return os.getcwd()
    except OSError:  # the directory was removed
        return "/"


# by what they share; None: none outlives its starter
_idle: dict[str, ForkServer] | None = None


@contextlib.contextmanager
def shared_fork_servers() -> Iterator[None]:
    """Within it starters that ``share`` the same one after the other have the same fork server."""
    global _idle
    _idle = {}
    try:
        yield
    finally:
        servers, _idle = _idle, None
        for server in servers.values():
            server.close()


class ProcessStarter:
    """Starts trial processes under one interpreter.

    It forks them from the fork server (``fork``), starts an interpreter for each (``spawn``), or
    forks where that is safe (``auto``), and tells where it falls back to a slower way. Where
    isolation is ``fork`` and not safe, all methods raise a UsageError. ``share`` names what its
    targets import, since an import may change what comes after it; without, nothing is shared.
    """

    def __init__(
        self, python: str, isolation: Isolation, tell: Callable[[str], None],
        selector: BaseSelector, share: str = "",
    ) -> None:  # fmt: skip
        if isolation not in ("auto", "fork", "spawn"):
            raise UsageError(
                f"unknown isolation {isolation!r} (choose from: auto, fork, spawn)"
            )
        if not Path("/proc/self/task").exists():
            raise UsageError("trials run on Linux only, with /proc mounted")
        self._python, self._tell, self._selector = python, tell, selector
        self._insists, self._forks = isolation == "fork", isolation != "spawn"
        self._library: tempfile.TemporaryDirectory[str] | None = None
        self._variables: dict[str, str] = {}  # on top of the parent's
        if python != sys.executable:
            self._library, self._variables = lent_package()
        self._fork_server: ForkServer | None = None
        self._warmth: tuple[Sequence[str], Path | None] = ((), None)
        self._tried: set[str] = set()  # targets that a fork server was to build
        self._deaths, self._is_inherited = 0, False
        self._share = "" if self._variables else share

    def is_ready(self, job: Job, alone: bool = True) -> bool:
        """Whether a trial can start at once; if not, starts the fork server that it waits for.

        ``alone``: no other trial is running.
        """
        while self._forks and not job.fresh:
            try:
                if self._fork_server is None and (
                    server := (_idle or {}).pop(self._share, None)
                ):
                    self._fork_server, self._is_inherited = server, True
                    server.attach(self._selector)
                elif self._fork_server is None:
                    self._fork_server = ForkServer(
                        self._python, self._variables, self._selector
                    )
                    if any(self._warmth):
                        self._fork_server.warm(*self._warmth)
                is_ready = self._fork_server.is_ready()
                return is_ready and self._has_its_target(job, alone)
            except ForkServerError as error:
                self._fall_back(error)
        return True

    def _has_its_target(self, job: Job, alone: bool) -> bool:
        """Whether a fork has what a job may have; else it is asked for, once nothing runs."""
        server = self._fork_server
        assert server is not None
        has_to_build = job.builds and job.made_of not in self._tried
        if not has_to_build and server.built in ("", job.made_of):
            return True
        # Also where an earlier run has built the same: a copy would hold the old one as well.
        if alone and server.built:
            server.forget()
        elif alone:
            self._tried.add(job.made_of)
            server.build(job)
        return False

    def forget(self) -> None:
        """Have the target built again that comes next; no trial may be running."""
        self._tried.clear()
        if self._fork_server is not None and self._fork_server.built:
            self._fork_server.forget()

    @property
    def step(self) -> Step:
        """Of the build of a target, which jobs wait for."""
        return Step.IMPORT if self._fork_server is None else self._fork_server.step

    def warm(self, modules: Sequence[str], toolchain: Path | None) -> None:
        """Have the fork server import modules or prepare a toolchain, now and after a restart."""
        self._warmth = (modules or self._warmth[0], toolchain or self._warmth[1])
        if self._fork_server is not None:
            try:
                self._fork_server.warm(modules, toolchain)
            except ForkServerError as error:
                self._fall_back(error)

    @property
    def is_busy(self) -> bool:
        """Whether the fork server imports or compiles something, which would disturb timings."""
        return self._fork_server is not None and self._fork_server.is_busy

    def start(self, job: Job) -> Child | None:
        """Start a trial's processes, after :meth:`is_ready`; an OSError or RunError if it cannot.

        None if the fork server has died since: try again.
        """
        child, server = Child.of(job), self._fork_server
        # Where building has been ended, forking has not been what went wrong in a trial.
        was_ended = job.builds and server is not None and server.was_ended
        if job.builds and server is not None and not job.fresh:
            child.not_built = server.not_built
        try:
            if not self._forks or job.fresh or server is None or was_ended:
                child.process = self._interpreter(child)
                child.supervisor = child.process.pid
            else:
                child.supervisor = server.fork(child.arguments, child.pipes.theirs)
                child.forked, self._is_inherited = True, False
        except ForkServerError as error:
            self._fall_back(error)
        finally:
            for end in child.pipes.theirs:
                os.close(end)
            if not child.supervisor:
                child.close()
        if not child.supervisor:
            return None
        with contextlib.suppress(OSError, AttributeError):
            child.pidfd = os.pidfd_open(child.supervisor)
        child.clock = Clock()
        return child

    def close(self) -> None:
        server = self._fork_server
        if _idle is not None and self._share and server is not None and server.detach():
            self._fork_server, _idle[self._share] = None, server
        self._end_fork_server()
        if self._library is not None:
            self._library.cleanup()

    def _end_fork_server(self) -> None:
        """The next trial starts a new one."""
        if self._fork_server is not None:
            self._fork_server.close()
            self._fork_server = None

    def _fall_back(self, error: ForkServerError) -> None:
        """Fork without the target's imports, or else start interpreters."""
        server = self._fork_server
        was_to_build = server is not None and server.was_to_build
        self._end_fork_server()
        if self._is_inherited:  # it says nothing about this target
            self._is_inherited = False
            return
        self._deaths += not error.is_unfit
        if not error.is_unfit and self._deaths <= _MOST_DEATHS:
            # It may have been killed from outside: try a new one.
            if server is not None and server.built:
                self._tell(f"each trial builds the model from now on: {error}")
            return
        if any(self._warmth) or was_to_build:
            self._warmth = ((), None)
            self._tell(f"trials are forked without the target's imports: {error}")
            return
        self._forks = False
        if self._insists:
            raise UsageError(
                f"trials cannot be forked here: {error}", hint="--isolation spawn"
            )
        self._tell(f"each trial starts its own interpreter, which is slower: {error}")

    def _interpreter(self, child: Child) -> subprocess.Popen[bytes]:
        results, output, control = child.pipes.theirs
        theirs = child.arguments
        options = {"channel": results, "control": control, "parent": os.getpid()}
        options |= {"nonce": theirs["nonce"], "fork_server": int(self._forks)}
        command = [self._python, "-m", "autocompile.trial", theirs["folder"]]
        return subprocess.Popen(
            [*command, *(f"--{name}={value}" for name, value in options.items())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(results, control),
            start_new_session=True,
            env={**os.environ, **self._variables, **theirs["environment"]},
        )
