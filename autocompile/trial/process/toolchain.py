"""Does the one-time work of Inductor's first compile before the first trial.

Inductor asks the C++ compiler which vector instructions it and the machine have: several small
programs, a few seconds each. They are built at the same time, and the results are kept for the next
run in the user's cache folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

from autocompile.protocol.processes import die_with_parent

__all__ = ["Toolchain"]


class Toolchain:
    """Prepares the toolchain in a child process, while this one goes on.

    Args:
        place: the folder that is made; every compiler cache of the run starts with a copy of it.
    """

    _is_warm: ClassVar[bool] = False

    def __init__(self, place: Path) -> None:
        self._place = place
        place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            die_with_parent(parent)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                self._probe()
            finally:
                os._exit(0)

    def _probe(self) -> None:
        if self._place.is_dir():
            return
        scratch = Path(tempfile.mkdtemp(dir=self._place.parent))
        kept = _kept()
        if kept is not None and _is_ours(kept):
            with contextlib.suppress(OSError):
                shutil.copytree(kept, scratch, dirs_exist_ok=True)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(scratch)
        _find_vector_instructions()
        if kept is not None and not kept.exists() and any(scratch.iterdir()):
            with contextlib.suppress(OSError):
                kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                with tempfile.TemporaryDirectory(dir=kept.parent) as new:
                    shutil.copytree(scratch, f"{new}/found")
                    os.chmod(f"{new}/found", 0o700)
                    os.rename(f"{new}/found", kept)
        os.chmod(scratch, 0o755)
        os.rename(scratch, self._place)

    def use(self) -> None:
        """Compile something small, on the CPU and on one thread: the process stays fit to fork.

        Once in a process: what a compile imports and keeps is there from then on.
        """
        import torch

        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        if Toolchain._is_warm:
            return
        Toolchain._is_warm = True
        with tempfile.TemporaryDirectory(dir=self._place.parent) as scratch:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{scratch}/cache"
            try:
                with contextlib.suppress(OSError):
                    shutil.copytree(self._place, f"{scratch}/cache")
                torch.compile(lambda x: x + 1)(torch.zeros(8))
            except Exception as error:  # no C++ compiler, say: the trials will tell
                print(f"autocompile: nothing can be compiled here: {error}", file=sys.stderr)
            finally:
                del os.environ["TORCHINDUCTOR_CACHE_DIR"]
                torch._dynamo.reset()


def _find_vector_instructions() -> None:
    """Have Inductor try all kinds of vector instructions at once."""
    from torch._inductor import cpu_vec_isa

    with contextlib.suppress(Exception):  # another torch does it one after the other below
        here = cpu_vec_isa.x86_isa_checker()
        every = cpu_vec_isa.supported_vec_isa_list
        kinds = [isa for isa in every if all(flag in here for flag in str(isa).split())]
        with ThreadPoolExecutor(len(kinds)) as pool:
            list(pool.map(bool, kinds))
    cpu_vec_isa.pick_vec_isa()


def _kept() -> Path | None:
    """Where an earlier run has kept its results; None without a home folder.

    Inductor names what it builds by the code, the flags and the compiler, so outdated results are
    not used; torch and python are in the name to keep the folder small.
    """
    import torch

    with contextlib.suppress(RuntimeError):  # there is no home
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        text = f"{torch.__version__} {sys.version} {os.environ.get('CXX', '')}"
        name = f"toolchain-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        return Path(home) / "autocompile" / name
    return None


def _is_ours(folder: Path) -> bool:
    """Whether only this user may write there: it holds code that is executed."""
    with contextlib.suppress(OSError):
        seen = folder.stat()
        return seen.st_uid == os.getuid() and not seen.st_mode & 0o022
    return False
