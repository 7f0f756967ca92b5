"""What it costs the tuner to stop all other trials for a timing, and to let them go on.

python studies/tuning_cost/stops.py

Sixteen trees such as trials are (a supervisor, and below it a worker in a session of its own with
30 threads) and 150 processes that have nothing to do with them. Written to ``stops.json``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from autocompile.execute import trees

TREES, THREADS, STRANGERS, TIMES = 16, 30, 150, 100
WORKER = f"""
import threading, time
for _ in range({THREADS}):
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
print("ready", flush=True)
time.sleep(1000)
"""
WARDEN = """
import subprocess, sys
worker = subprocess.Popen(
    [sys.executable, "-c", sys.argv[1]], start_new_session=True, stdout=subprocess.PIPE
)
worker.stdout.readline()
print(worker.pid, flush=True)
worker.wait()
"""


def main() -> None:
    strangers = [subprocess.Popen(["sleep", "1000"]) for _ in range(STRANGERS)]
    command = [sys.executable, "-c", WARDEN, WORKER]
    supervisors = [
        subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(TREES)
    ]
    workers = [int(w.stdout.readline()) for w in supervisors if w.stdout]
    try:
        began, used = time.monotonic(), time.process_time()
        for _ in range(TIMES):
            for stopped in trees.pause([w.pid for w in supervisors], workers).values():
                assert len(stopped) == 1
                trees.resume(stopped)
        cpu_s, wall_s = time.process_time() - used, time.monotonic() - began
    finally:
        for pid in (*workers, *(p.pid for p in (*supervisors, *strangers))):
            os.kill(pid, signal.SIGKILL)
    found = {
        "schema": 1,
        "trees": TREES,
        "threads": THREADS,
        "strangers": STRANGERS,
        "cpu_ms": round(1e3 * cpu_s / TIMES, 2),
        "wall_ms": round(1e3 * wall_s / TIMES, 2),
        "python": sys.version.split()[0],
        "cores": len(os.sched_getaffinity(0)),
    }
    (Path(__file__).parent / "stops.json").write_text(
        json.dumps(found, indent=1) + "\n"
    )
    print(found)


if __name__ == "__main__":
    main()
