"""A loop over twelve settings of a ConvNet, in fresh interpreters, against ``--effort quick``.

    python studies/gpu/twelve.py --to studies/gpu/regret/twelve.json

The loop is that of somebody who writes it: import, build, compile, compare once, time twelve blocks
beside eager mode, the next. It measures each setting once and confirms nothing.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from networks import MODELS, settings  # noqa: E402
from reference import Timed, Work, machine, ms_of, works_of  # noqa: E402
from regret import tuned  # noqa: E402

TWELVE = 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="convnet_depthwise")
    parser.add_argument("--to", type=Path, required=True)
    options = parser.parse_args()
    options.limit, options.budget, options.calls, options.jobs = 300.0, "", 0, 1
    model = MODELS[options.model]
    scratch = Path(tempfile.mkdtemp(prefix="twelve-"))
    rows: list[dict[str, Any]] = []

    def tell(work: Work, record: dict[str, Any]) -> list[Work]:
        ms = ms_of(record) if "compiled_ms" in record else record.get("outcome")
        rows.append(
            {"setting": record["setting"], "ms": ms, "wall_s": record["wall_s"]}
        )
        print(rows[-1], flush=True)
        return []

    specs = [s for s in settings(model) if s.compiled][:TWELVE]
    began = time.time()
    Timed(1, began + 3600, "spawn", tell).run(works_of(model, specs, scratch, options))
    loop_s = round(time.time() - began, 1)
    tune = tuned(model, "quick", scratch / "run", options)
    shutil.rmtree(scratch, ignore_errors=True)
    found = {
        "machine": machine(model.device),
        "model": model.name,
        "loop_s": loop_s,
        "rows": rows,
    }
    options.to.write_text(json.dumps({**found, "tune": tune}, indent=1) + "\n")
    print(
        f"loop {loop_s} s, tune {tune['wall_s']} s: {loop_s / tune['wall_s']:.2f} times"
    )


if __name__ == "__main__":
    main()
