"""Print the table of this study's README from the recorded reports.

python studies/first_runs/table.py
"""

import json
from pathlib import Path

from autocompile.settings.config import CompileConfig

HERE = Path(__file__).parent

print(
    "| machine | example | phase | batch | best compiled setting | speed-up | processes | verdict |"
)
print("|---|---|---|---|---|---|---|---|")
for path in sorted(HERE.glob("*/*.json")):
    report = json.loads(path.read_text("utf-8"))
    for name, phase in report["phases"].items():
        settings = {t["number"]: t["config"] for t in phase["trials"]}
        for row in phase["by_batch_size"]:
            config, speedup = settings[row["number"]], row["speedup"]
            label = CompileConfig.from_dict(config).label()
            interval = (
                f"{speedup['value']:.2f} [{speedup['low']:.2f}, {speedup['high']:.2f}]"
            )
            print(
                f"| {path.parent.name} | {path.stem} | {name} | {row['batch_size'] or '-'} "
                f"| {label} | {interval} | {row['confirmed_processes']} | {phase['verdict']} |"
            )
