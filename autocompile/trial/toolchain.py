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
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from autocompile.protocol.processes import die_with_parent


def start(place: Path) -> int:
    """Begin to make the folder that every compiler cache of the run starts with a copy of.

    Returns the pid of a child that does it, while this process goes on.
    """
    parent = os.getpid()
    if pid := os.fork():
        return pid
    die_with_parent(parent)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        _probe(place)
    finally:
        os._exit(0)


def prepare(device: str, place: Path) -> float:
    """The same in this process, for any device; returns the seconds it took."""
    began = time.monotonic()
    if device == "cpu":
        with contextlib.suppress(Exception):  # then each trial probes for itself
            _probe(place)
    compile_a_little(device, place)
    return time.monotonic() - began


def _probe(place: Path) -> None:
    """Make the folder with Inductor's probes of vector instructions, made anew or by another run.

    Inductor names what it builds by the code, the flags and the compiler, so outdated results are
    not used; torch and python are in the name to keep the folder small.
    """
    import torch

    if place.is_dir():
        return
    place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=place.parent))
    kept = scratch
    # There is no home, or it cannot be written.
    with contextlib.suppress(OSError, RuntimeError):
        home = (
            Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
            / "autocompile"
        )
        text = f"{torch.__version__} {sys.version} {os.environ.get('CXX', '')}"
        cache = home / f"toolchain-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = cache.stat()
        # Its code is executed.
        if status.st_uid == os.getuid() and not status.st_mode & 0o022:
            kept = cache
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(kept)
    _find_vector_instructions()
    if kept != scratch:
        shutil.copytree(kept, scratch, dirs_exist_ok=True)
    os.chmod(scratch, 0o755)
    os.rename(scratch, place)


def _find_vector_instructions() -> None:
    """Have Inductor try all kinds of vector instructions at once."""
    from torch._inductor import cpu_vec_isa

    # Another torch does it one after the other below.
    with contextlib.suppress(Exception):
        here = cpu_vec_isa.x86_isa_checker()
        every = cpu_vec_isa.supported_vec_isa_list
        kinds = [isa for isa in every if all(flag in here for flag in str(isa).split())]
        with ThreadPoolExecutor(len(kinds)) as pool:
            list(pool.map(bool, kinds))
    cpu_vec_isa.pick_vec_isa()


def compile_a_little(device: str, place: Path) -> None:
    """Compile something small on one thread, which also imports all that compiling needs."""
    import torch

    with tempfile.TemporaryDirectory() as scratch:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{scratch}/cache"
        os.environ["TRITON_CACHE_DIR"] = f"{scratch}/triton"
        try:
            with contextlib.suppress(OSError):
                shutil.copytree(place, f"{scratch}/cache")
            torch.compile(lambda x: x + 1)(torch.zeros(8, device=device))
        except (
            Exception
        ) as error:  # no C++ compiler, say: each trial that needs it will tell
            print(
                f"autocompile: nothing can be compiled here: {error}", file=sys.stderr
            )
        finally:
            torch._dynamo.reset()
            del os.environ["TORCHINDUCTOR_CACHE_DIR"], os.environ["TRITON_CACHE_DIR"]
