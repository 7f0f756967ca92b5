from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from recorded_runs import page_of

pytestmark = pytest.mark.browser

PROBE = """
const found = { figures: document.querySelectorAll("figure svg").length };
found.overflow = document.documentElement.scrollWidth - innerWidth;
const answer = document.querySelector("#answer .scroll");
found.hidden = answer.scrollWidth - answer.clientWidth;
found.below = answer.getBoundingClientRect().bottom - innerHeight;
document.title = JSON.stringify(found);
"""


def browse(text: str, path: Path, width: int) -> tuple[str, list[str]]:
    """The page as Chromium leaves it, and what its console says."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("needs Chromium")
    path.write_text(text, "utf-8")
    flags = "--headless --no-sandbox --disable-gpu --no-first-run --enable-logging=stderr --dump-dom"
    own = [f"--user-data-dir={path.parent / 'profile'}", f"--window-size={width},900"]
    command = [chromium, *flags.split(), *own, path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def with_probe(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(PROBE.encode()).digest()).decode()
    text = text.replace("style-src ", f"script-src 'sha256-{digest}'; style-src ", 1)
    return text.replace("</body>", f"<script>{PROBE}</script></body>")


@pytest.mark.parametrize("width", [400, 1200])
def test_a_browser_shows_the_page_without_an_error_or_a_request(
    width: int, tmp_path: Path
) -> None:
    text, _ = page_of("outcomes", tmp_path)
    shown, console = browse(with_probe(text), tmp_path / "page.html", width)
    assert console == []
    (title,) = re.findall(r"<title>(\{.*?\})</title>", shown)
    found = json.loads(html.unescape(title))
    assert found["figures"] == text.count("<svg")
    assert found["overflow"] <= 0
    assert found["hidden"] <= 0  # the answer is whole, without a scroll
    assert found["below"] <= 0


def test_the_browser_refuses_what_would_leave_the_page(tmp_path: Path) -> None:
    """So that a clean console means that no request left it."""
    text, _ = page_of("cpu", tmp_path)
    text = text.replace("</main>", '<img src="http://127.0.0.1:9/x.png"></main>')
    _, console = browse(text, tmp_path / "page.html", 400)
    assert any("Content Security Policy" in line for line in console)
