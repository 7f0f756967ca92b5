"""The fork server: has imported torch, Dynamo and Inductor, and forks trials on request.

A fork copies memory but no thread: a lock that another thread held stays locked for ever, OpenMP's
pool is gone, an opened GPU driver is unusable. So the fork server computes on one thread only,
never touches the GPU, and checks itself before each fork. A test child that computes as trials do
shows what cannot be seen from inside; it is repeated when a library has started a thread since. If
a check fails, the fork server refuses and says why.

It also builds the target, for all trials at once: in a copy of itself, which then serves in its
place, while the original waits. Where the copy is not certain to be like a process that has built
the target for itself (:mod:`.builder`), the original goes on, and each trial builds its own.
"""

from __future__ import annotations

import os
import sys

if sys.path[0] in ("", os.getcwd()):
    del sys.path[0]

import contextlib
import functools
import gc
import importlib
import json
import signal
import socket
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from pathlib import Path
from typing import Any

from autocompile.protocol import processes
from autocompile.trial import builder, toolchain
from autocompile.trial.supervisor import end_with_parent, guard

_TEST_CHILD_S = 30
_END_S = 10.0  # for what a copy leaves behind to end
_FORGOTTEN = 75  # exit code of a copy that has been told to forget its target


class _ForkServer:
    def __init__(self, connection: Connection, tuner: int) -> None:
        self._connection, self._tuner = connection, tuner
        import torch
        import torch._dynamo
        import torch._inductor.compile_fx
        import torch._inductor.select_algorithm

        from autocompile.trial.model import built
        from autocompile.trial.worker import run  # what every trial needs of ours

        with contextlib.suppress(ImportError):
            # Or Inductor's first compile leaves a thread behind.
            importlib.import_module("tqdm").tqdm.monitor_interval = 0
        self._torch, self._run, self._built = torch, run, built
        self._proven_threads = 0
        # its pid, and the folder that it makes
        self._toolchain: tuple[int, Path] | None = None
        self._has_compiled = False
        self._supervisors: set[int] = set()
        self._may_reap = True
        processes.adopt_orphans()
        signal.signal(signal.SIGCHLD, self._reap)
        # Python warns of native threads too; ``_refusal`` checks more closely.
        warnings.filterwarnings(
            "ignore", "This process .* is multi-threaded", DeprecationWarning
        )

    def serve(self) -> None:
        self._reply(self._refusal())
        while True:
            try:
                request = json.loads(self._connection.recv_bytes())
            except EOFError:  # the tuner is gone
                return
            self._may_reap = False  # children of other kinds come and go
            answer = self._done(request)
            self._may_reap = True
            self._reap()
            self._reply(answer)

    def _done(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request, once it has been met."""
        if request["do"] == "fork":
            descriptors = [recv_handle(self._connection) for _ in range(3)]
            answer = self._refusal() or {"pid": self._fork(request, descriptors)}
            for descriptor in descriptors:
                os.close(descriptor)
            return answer
        if request["do"] == "build":
            return self._refusal() or self._build(request)
        if request["do"] == "forget":
            if self._built.target is not None:
                os._exit(_FORGOTTEN)  # the original answers
            return {}
        if request["do"] == "warm":
            if _import(request["modules"]):
                self._proven_threads = 0
            if request["toolchain"] is not None:
                place = Path(request["toolchain"])
                self._toolchain = toolchain.start(place), place
        elif self._toolchain is not None:  # prepare
            (pid, place), self._toolchain = self._toolchain, None
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
            if not self._has_compiled:  # what a compile imports and keeps stays
                toolchain.compile_a_little("cpu", place)
            self._has_compiled = True
        return self._refusal()

    def _reap(self, *_: Any) -> None:
        """Forget supervisors that have ended, and end the processes that a killed one has left.

        What those have started is then adopted by this process, which gets SIGCHLD again.
        """
        if not self._may_reap:
            return
        with contextlib.suppress(ChildProcessError):
            while pid := os.waitpid(-1, os.WNOHANG)[0]:
                self._supervisors.discard(pid)
        known = self._supervisors | set((self._toolchain or ())[:1])
        processes.kill(set(processes.children(os.getpid())) - known)

    def _reply(self, answer: dict[str, Any]) -> None:
        self._connection.send_bytes(json.dumps(answer).encode())

    def _refusal(self) -> dict[str, Any]:
        """Why it cannot fork, as ``refused``, or nothing."""
        if self._torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return {"refused": "CUDA is initialised in it"}
        others = [
            t.name for t in threading.enumerate() if t is not threading.main_thread()
        ]
        if others:
            return {"refused": f"a thread runs in it: {others[0]}"}
        threads = len(os.listdir("/proc/self/task"))  # those of C libraries too
        if threads > self._proven_threads:
            gc.collect()
            gc.freeze()  # a collection in a child would touch, and so copy, every page
            if reason := _test_child_fails():
                what = f"{reason}; {threads - 1} threads of libraries run in the fork server"
                return {"refused": what}
            self._proven_threads = threads
        return {}

    def _build(self, request: dict[str, Any]) -> dict[str, Any]:
        """Have a copy of this process build the target; returns in it, if it can serve."""
        said = self._in_a_copy(request)
        if said and said.modules:
            # A library whose import starts threads must have them before the fork.
            _import(said.modules)
            self._proven_threads = 0
            if refusal := self._refusal():
                return refusal
            said = self._in_a_copy(request)
        if said is None:
            return {"built": self._built.target is not None}
        return {"built": False, "why": said.why, "was_ended": said.was_ended}

    def _in_a_copy(self, request: dict[str, Any]) -> builder.Said | None:
        """Why a copy of this process cannot serve in its place.

        None in a copy that can, and in this process once that has forgotten its target.
        """
        ours, theirs = socket.socketpair()
        original = os.getpid()
        with ours, theirs, tempfile.TemporaryFile() as printed:
            # While there is a copy, what it has started has to end with this process.
            signal.signal(signal.SIGTERM, end_with_parent)
            processes.die_with_parent(self._tuner, signal.SIGTERM)
            try:
                copy = os.fork()
            except OSError as error:
                self._be_without_copy()
                return builder.Said(f"there is no process for it: {error.strerror}")
            if copy == 0:
                ours.close()
                self._become_copy(original)
                builder.build_for_all(
                    request, theirs, printed.fileno(), self._why_unfit
                )
                self._take_over(theirs)
                return None
            theirs.close()
            limits = builder.BuildLimits(request["timeout_s"], request["memory_bytes"])
            said = builder.watch(copy, ours, printed.fileno(), limits, self._say_step)
            if said.why:
                processes.kill([copy])
            else:
                ours.setblocking(True)
                socket.send_fds(ours, [b"!"], [self._connection.fileno()])
        code = os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])
        self._end_strangers()
        if not said.why and code != _FORGOTTEN:  # the tuner is gone, or sees its end
            processes.end_descendants()
            os._exit(code & 0xFF)
        self._be_without_copy()
        return said if said.why else None

    def _be_without_copy(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        processes.die_with_parent(self._tuner)

    def _say_step(self, step: str) -> None:
        self._reply({"step": step})

    def _become_copy(self, original: int) -> None:
        """Be to the user's code what a trial's worker is."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        processes.die_with_parent(original)
        processes.adopt_orphans()
        os.setsid()
        self._connection.close()  # which is not for the user's code
        self._supervisors.clear()

    def _why_unfit(self) -> str:
        self._proven_threads = 0
        return str(self._refusal().get("refused", ""))

    def _take_over(self, original: socket.socket) -> None:
        """Serve the tuner in place of the original from now on."""
        _, (descriptor, *_), *_ = socket.recv_fds(original, 1, 1)
        os.set_inheritable(descriptor, False)
        self._connection = Connection(descriptor)
        signal.signal(signal.SIGCHLD, self._reap)

    def _end_strangers(self) -> None:
        """End what a copy has left behind, level by level."""
        deadline = time.monotonic() + _END_S
        known = self._supervisors | set((self._toolchain or ())[:1])
        while time.monotonic() < deadline:
            if not (strangers := set(processes.children(os.getpid())) - known):
                return
            processes.kill(strangers)
            for pid in strangers:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            time.sleep(0.001)

    def _fork(self, request: dict[str, Any], descriptors: Sequence[int]) -> int:
        fork_server = os.getpid()
        if pid := os.fork():
            self._supervisors.add(pid)
            return pid
        try:
            results, output, control = descriptors
            self._connection.close()
            os.setsid()
            os.chdir(request["cwd"])
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)
            os.environ.update(request["environment"])
            nonce, folder = request["nonce"], request["folder"]
            work = functools.partial(self._run, folder, results, nonce, control, True)
            guard(work, results, nonce, fork_server, Path(folder))
        finally:
            os._exit(70)


def _import(modules: Sequence[str]) -> bool:
    """Import those that are not there yet; whether there were any."""
    missing = [name for name in modules if name not in sys.modules]
    for name in missing:
        if name not in sys.modules:  # another has imported it
            with contextlib.suppress(Exception), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                importlib.import_module(name)
    return bool(missing)


def _test_child_fails() -> str:
    """Why a forked child cannot compute as trials do; empty if it can."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(_TEST_CHILD_S)
            _compute()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    signal.signal(signal.SIGCHLD, before)
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        return ""
    return "a forked child " + (
        "hangs" if code == -signal.SIGALRM else "cannot compute"
    )


def _compute() -> None:
    """Use what a fork can break: parallel regions, autograd's threads, CUDA."""
    import torch

    # Whatever the user's code has set for all that follows.
    with torch.inference_mode(False), torch.enable_grad():
        matrix = torch.ones(512, 512, device="cpu", requires_grad=True)
        (matrix @ matrix).sum().backward()  # type: ignore[no-untyped-call]
    if torch.cuda.is_available():
        torch.ones(1, device="cuda").sum().item()


def main() -> None:
    """Serve the connection whose descriptor is the first argument; the second: the tuner's pid."""
    tuner = int(sys.argv[2])
    processes.die_with_parent(tuner)
    processes.keep_others_from_writing()
    os.environ.setdefault(processes.MARKER, "fork_server")
    connection = Connection(int(sys.argv[1]))
    os.set_inheritable(connection.fileno(), False)
    code = 1
    try:
        _ForkServer(connection, tuner).serve()
        code = 0
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(
        code
    )  # what the user's code has registered for an exit is not for this process


if __name__ == "__main__":
    main()
