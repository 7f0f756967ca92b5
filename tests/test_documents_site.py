"""The documents build as a site that needs no network."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
from conftest import ROOT

pytest.importorskip("material", reason="needs mkdocs-material")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--site-dir",
        str(folder),
    ]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_there(site: Path) -> None:
    for page in (ROOT / "docs").glob("*.md"):
        name = "" if page.stem == "README" else page.stem
        assert (site / name / "index.html").exists(), page.name
    for study in (ROOT / "studies").glob("*/README.md"):
        assert (site / "studies" / study.parent.name / "index.html").exists()


def test_every_link_and_picture_leads_somewhere(site: Path) -> None:
    seen = 0
    for page in site.rglob("*.html"):
        for link in re.findall(r'(?:href|src)="?([^"\s>]+)', page.read_text("utf-8")):
            path = unquote(urldefrag(link).url)
            if path and "://" not in path and page.name != "404.html":
                target = page.parent / path
                assert target.exists(), f"{page.relative_to(site)}: {link}"
                assert target.is_file() or (target / "index.html").exists()
                seen += 1
    assert seen > 500


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    loading = re.compile(
        r'<(?:script|img|iframe)[^>]*src="?https?:|<link[^>]*stylesheet[^>]*http'
    )
    for page in site.rglob("*.html"):
        assert not loading.search(page.read_text("utf-8")), page
