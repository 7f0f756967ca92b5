"""Draw the speed-ups of the recorded reports: speedups.svg beside this file.

python studies/first_runs/plot.py
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MACHINES = {
    "two CPU cores": ("cpu", "two_cores"),
    "an H100": ("h100",),
}
LEFT, RIGHT, WIDTH, ROW, TOP = 290, 596, 660, 21, 56
LEAST, MOST = 0.7, 9.0
STYLE = """
text{font:12px system-ui,sans-serif;fill:#1f2328}
.paper{fill:#fff}.dim{fill:#59636e}.strong{font-weight:600}
line{stroke:#d1d9e0}.one{stroke:#59636e;stroke-dasharray:4 3}
.gain{stroke:#0969da;stroke-width:2}.best{fill:#0969da;stroke:#0969da;stroke-width:1.5}
.plain{fill:#bc4c00}.best.open{fill:#fff}
@media(prefers-color-scheme:dark){
text{fill:#f0f6fc}.paper{fill:#0d1117}.dim{fill:#9198a1}
line{stroke:#3d444d}.one{stroke:#9198a1}
.gain{stroke:#4493f8}.best{fill:#4493f8;stroke:#4493f8}.plain{fill:#f0883e}.best.open{fill:#0d1117}
}
"""


# Of the earliest version, which raced the finalists in processes of their own.
_APART = (("cpu", "cnn"),)


def rows(folder: Path) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Name, best setting and whether it was decided, of each phase that was raced side by side."""
    for path in sorted(folder.glob("*.json")):
        if (folder.name, path.stem) in _APART:
            continue
        for name, phase in json.loads(path.read_text("utf-8"))["phases"].items():
            answer = phase["answer"]
            size = answer["batch_size"]
            where = f", batch {size}" if size else ""
            decided = answer["confidence"] == "high"
            yield f"{path.stem}: {name}{where}", answer["best"], decided


def at(ratio: float) -> float:
    """The place of a ratio on the logarithmic axis."""
    return LEFT + (RIGHT - LEFT) * math.log(ratio / LEAST) / math.log(MOST / LEAST)


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{words}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str = "") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def row(y: float, name: str, best: dict[str, Any], decided: bool) -> Iterator[str]:
    """One phase: its name, plain torch.compile(), the best setting with its interval, the gain."""
    gain = best["speedup"]
    yield text(12, y + 4, name)
    if over := best[
        "speedup_against_default"
    ]:  # None where plain torch.compile() was not raced
        x = at(gain["value"] / over["value"]) - 4
        yield f'<rect x="{x:.1f}" y="{y - 4}" width="8" height="8" class="plain"/>'
    yield line(at(gain["low"]), y, at(gain["high"]), y, "gain")
    kind = "best" if decided else "best open"
    yield f'<circle cx="{at(gain["value"]):.1f}" cy="{y}" r="4" class="{kind}"/>'
    yield text(WIDTH - 12, y + 4, f"{gain['value']:.2f}×", "strong", "end")


def legend() -> Iterator[str]:
    yield '<circle cx="18" cy="20" r="4" class="best"/>'
    yield text(28, 24, "best setting, 95 % interval")
    yield '<circle cx="236" cy="20" r="4" class="best open"/>'
    yield text(246, 24, "the same, still open")
    yield '<rect x="396" y="16" width="8" height="8" class="plain"/>'
    yield text(410, 24, "plain torch.compile()")


def figure() -> str:
    parts, y = [*legend()], TOP
    for machine, folders in MACHINES.items():
        parts.append(text(12, y + 4, machine, "strong"))
        for name, best, decided in (r for f in folders for r in rows(HERE / f)):
            y += ROW
            parts += row(y, name, best, decided)
        y += ROW + 8
    bottom = y - 14
    axis = [
        line(at(x), TOP, at(x), bottom, "one" if x == 1 else "") for x in (1, 2, 4, 8)
    ]
    labels = [text(at(x), bottom + 17, f"{x}×", "dim", "middle") for x in (1, 2, 4, 8)]
    labels.append(text(12, bottom + 17, "speed-up over eager mode", "dim"))
    height = bottom + 28
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
        f"<title>Speed-ups of the recorded runs</title><style>{STYLE}</style>"
        f'<rect width="{WIDTH}" height="{height}" class="paper"/>'
    )
    return "\n".join([head, *axis, *parts, *labels, "</svg>\n"])


if __name__ == "__main__":
    (HERE / "speedups.svg").write_text(figure(), "utf-8")
