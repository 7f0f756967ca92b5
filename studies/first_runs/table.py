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
        answers = (phase["answer"], *phase["other_sizes"])
        for answer in sorted(answers, key=lambda answer: answer["batch_size"] or 0):
            row = answer.get("next") or answer["best"]
            config, speedup = row["config"], row["speedup"]
            label = CompileConfig.from_dict(config).label()
            interval = (
                f"{speedup['value']:.2f} [{speedup['low']:.2f}, {speedup['high']:.2f}]"
            )
            print(
                f"| {path.parent.name} | {path.stem} | {name} "
                f"| {answer['batch_size'] or '-'} | {label} | {interval} "
                f"| {row['confirmed_processes']} | {phase['answer']['verdict']} |"
            )
