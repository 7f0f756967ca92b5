"""A station: ``python -m autocompile.cluster.station`` runs jobs that it is told on its stdin.

It is a process of its own below a Ray actor, with the environment that the machine had before Ray.
As a tune on one machine it holds the machine and runs a ``LocalExecutor``; its jobs are spread over
the GPUs that it sees. When its stdin ends, the actor is dead: it ends all it runs.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import queue
import select
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from autocompile import __version__
from autocompile.cluster.wire import Do, Say, decode, encode
from autocompile.errors import AutocompileError
from autocompile.execute import exclusive
from autocompile.execute.executor import Ended, Event, Job, Stepped
from autocompile.execute.local import LocalExecutor
from autocompile.execute.memory import most_memory_bytes
from autocompile.store.files import make_folder, write_json
from autocompile.store.reading import plain
from autocompile.store.record import AT_WORK

_IDLE_S = 60.0
_PATIENCE_S = 5.0  # to end itself once its stdin has ended
_SENT_BACK = ("log.txt", AT_WORK)
_CACHES = {"TORCHINDUCTOR_CACHE_DIR": "", "TRITON_CACHE_DIR": "triton"}
_GPUS = "CUDA_VISIBLE_DEVICES"


class Inbox:
    """Messages from a thread that reads stdin; a byte in a pipe says that there are some."""

    def __init__(self, source: int) -> None:
        self._messages = queue.SimpleQueue[str | None]()
        self.descriptor, self._bell = os.pipe()
        threading.Thread(target=self._read, args=(source,), daemon=True).start()

    def _read(self, source: int) -> None:
        with open(source, encoding="utf-8") as lines:
            for line in lines:
                self._put(line)
        self._put(None)
        time.sleep(_PATIENCE_S)
        os.kill(os.getpid(), signal.SIGKILL)

    def _put(self, line: str | None) -> None:
        self._messages.put(line)
        os.write(self._bell, b"!")

    def take(self) -> list[str | None]:
        """What has come; None for the end."""
        found: list[str | None] = []
        while select.select([self.descriptor], [], [], 0)[0]:
            os.read(self.descriptor, 1)
            found.append(self._messages.get())
        return found


class StationFolder:
    """A temporary folder with the target's files, jobs and compiler caches.

    A driver's paths mean nothing here. Those in a request are replaced when it arrives, and those
    of this folder in what is sent back, so that users read their own. ``files`` are base64 by their
    path under ``place``, a folder of the driver's.
    """

    def __init__(self, files: Mapping[str, str], place: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="autocompile-station-")).resolve()
        self._place, self._files = place, self.path / "files"
        make_folder(self._files)
        for name, content in files.items():
            path = (self._files / name).resolve()
            if self._files not in path.parents:
                raise ValueError(f"{name} leads out of the station's folder")
            make_folder(path.parent)
            path.write_bytes(base64.b64decode(content))
        self.toolchain = self.path / "toolchain"
        # Trials import from here, as they would in the driver's folder.
        os.chdir(self._files)

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
        folder = self._folder_of(number)
        shutil.rmtree(folder, ignore_errors=True)
        make_folder(folder)
        write_json(folder / "request.json", request)
        return folder

    def _side(self, side: Mapping[str, Any]) -> dict[str, Any]:
        """With its cache here; what another station has compiled is compiled again."""
        # None is the cache of the process, which the job's variables name.
        if side["cache"] is None:
            return dict(side)
        cache = self.path / "cache" / Path(side["cache"]).name
        is_here = cache.is_dir()
        if not is_here:
            self._seed(cache)
        return {**side, "cache": str(cache), "is_warm": side["is_warm"] and is_here}

    def environment(self, number: int, sent: Mapping[str, str]) -> dict[str, str]:
        """A job's variables, with an empty compiler cache if it has one."""
        if not _CACHES.keys() & sent.keys():
            return dict(sent)
        cache = self.path / "cache" / f"{number:04d}"
        shutil.rmtree(cache, ignore_errors=True)
        self._seed(cache)
        places = {name: str(cache / below) for name, below in _CACHES.items()}
        return {**sent, **places}

    def drop_caches(self, kept: Collection[str]) -> None:
        """Remove the compiler caches whose names are not among these."""
        with contextlib.suppress(OSError):
            for cache in (self.path / "cache").iterdir():
                if cache.name not in kept:
                    shutil.rmtree(cache, ignore_errors=True)

    def results(self, number: int) -> dict[str, str]:
        """The files of a job that the driver reads; the folder is gone afterwards."""
        folder = self._folder_of(number)
        found: dict[str, str] = {}
        for name in _SENT_BACK:
            with contextlib.suppress(OSError):
                found[name] = (folder / name).read_text("utf-8", "replace")
        shutil.rmtree(folder, ignore_errors=True)
        return found

    def outward(self, line: str) -> str:
        """A message with the driver's paths of the target's files in place of ours."""
        return line.replace(str(self._files), self._place_in_json)

    def _inward(self, data: Any) -> Any:
        """JSON with our paths of the target's files in place of the driver's."""
        text = json.dumps(data)
        return json.loads(text.replace(self._place_in_json, str(self._files)))

    @property
    def _place_in_json(self) -> str:
        """The driver's path as it stands inside strings of JSON: escaped, without quotes."""
        return json.dumps(self._place)[1:-1]

    def _folder_of(self, number: int) -> Path:
        return self.path / "jobs" / f"{number}"

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def _seed(self, cache: Path) -> None:
        if self.toolchain.is_dir():
            shutil.copytree(self.toolchain, cache)
        else:
            make_folder(cache)


class Station:
    """Does what messages say, and writes what it has to say to a file."""

    def __init__(self, inbox: Inbox, sink: int) -> None:
        self._inbox, self._sink = inbox, sink
        self._ends = contextlib.ExitStack()  # what it holds
        self._executor: LocalExecutor | None = None
        self._folder: StationFolder | None = None
        self._gpus = list(filter(None, os.environ.get(_GPUS, "").split(",")))
        self._used = Counter[str]()  # jobs that each GPU has had
        # By job: its GPU, and the race whose turns it takes.
        self._running: dict[int, tuple[str, Any]] = {}

    def run(self) -> None:
        """Work until it is told to close, or the actor is dead."""
        try:
            with self._ends:
                while all(map(self._take, self._inbox.take())):
                    events = self._executor.wait(_IDLE_S) if self._executor else []
                    for event in events:
                        self._tell(event)
                    # An executor without jobs does not wait.
                    if not self._running and not events:
                        select.select([self._inbox.descriptor], [], [], _IDLE_S)
        except (AutocompileError, OSError, ValueError) as error:
            what = error.text() if isinstance(error, AutocompileError) else str(error)
            self._say(Say.FAILED, text=what)
        finally:
            with contextlib.suppress(OSError):
                self._say(Say.CLOSED)

    # What it is told ------------------------------------------------------------------------------

    def _take(self, line: str | None) -> bool:
        """Do what a message says; False to end."""
        if line is None:
            return False
        message: dict[str, Any] = decode(line)
        kind = message["do"]
        if kind is Do.CLOSE:
            return False
        if kind is Do.OPEN:
            self._open(message)
        elif kind is Do.START:
            self._start(message)
        elif kind is Do.CANCEL and self._executor:
            self._executor.cancel(message["number"])
        return True

    def _open(self, message: Mapping[str, Any]) -> None:
        # The driver waits for the first word a while: a station before it may not be dead yet.
        held = exclusive.held("trials of a Ray cluster", self._tell_text, wait=True)
        self._ends.enter_context(held)
        self._folder = StationFolder(message["files"], message["place"])
        self._ends.callback(self._folder.remove)
        gpus = max(1, len(self._gpus))
        self._executor = LocalExecutor(message["isolation"], message["jobs"], gpus)
        self._ends.callback(self._executor.close)
        self._executor.listen(self._inbox.descriptor)
        self._memory = message["memory_limit_bytes"]
        self._say(Say.HELLO, autocompile=__version__, slots=self._executor.slots)

    def _start(self, message: Mapping[str, Any]) -> None:
        assert self._folder is not None
        assert self._executor is not None
        sent, request = message["job"], message["request"]
        number = sent["number"]
        # A job that runs may read a cache that is to go.
        if not self._running:
            self._folder.drop_caches(message["kept"])
        environment = self._folder.environment(number, sent["environment"])
        at_once = 1 if message["alone"] else max(1, self._executor.slots)
        own = {
            "folder": self._folder.prepare(number, request),
            "environment": environment | self._place(number, request),
            "toolchain": self._folder.toolchain if sent["toolchain"] else None,
            # Unless the user gave a limit, its share; None where the machine's is not known.
            "memory_limit_bytes": self._memory
            or most_memory_bytes() // at_once
            or None,
        }
        self._executor.start(Job(**{**sent, **own}))

    def _place(self, number: int, request: Mapping[str, Any]) -> dict[str, str]:
        """Variables that give a job the GPU with the least to do; those that take turns share."""
        race = None
        if request.get("takes_turns"):
            race = request["phase"], request["batch_size"]
        running = self._running.values()
        loads = Counter(gpu for gpu, _ in running)
        shared = [gpu for gpu, other in running if race and other == race]
        # Of those with as much to do, the one that had the fewest jobs so far.
        gpus = self._gpus or [""]
        least = min(gpus, key=lambda gpu: (loads[gpu], self._used[gpu]))
        gpu = shared[0] if shared else least
        self._running[number] = gpu, race
        self._used[gpu] += 1
        return {_GPUS: gpu} if gpu else {}

    # What it says ---------------------------------------------------------------------------------

    def _tell(self, event: Event) -> None:
        assert self._folder is not None
        assert self._executor is not None
        if isinstance(event, Stepped):
            self._say(Say.STEPPED, number=event.number, step=event.step.value)
        elif isinstance(event, Ended):
            del self._running[event.number]
            self._say(
                Say.ENDED,
                number=event.number,
                ending=plain(event.ending),
                files=self._folder.results(event.number),
                slots=self._executor.slots,
            )
        else:
            self._tell_text(event.text)

    def _tell_text(self, text: str) -> None:
        self._say(Say.TOLD, text=text)

    def _say(self, kind: Say, **fields: Any) -> None:
        line = encode(kind, **fields)
        if self._folder:
            line = self._folder.outward(line)
        data = line.encode() + b"\n"
        # A pipe may take only a part at once.
        while data:
            data = data[os.write(self._sink, data) :]


def main() -> None:
    """Listen on stdin, speak on stdout; whatever else is printed goes to stderr."""
    # Ray may have it ignored, and then nobody can wait for a child.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Ctrl-C in the driver's terminal is the driver's to act on.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    source, sink = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    Station(Inbox(source), sink).run()


if __name__ == "__main__":
    main()
