"""A hook of mkdocs: the site also has the files beside docs/ that its pages link to.

Links stay as they are in the files, where they lead from one to another in a checkout too.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
BESIDE = (
    "[AC]*.md",
    "studies/**/*.md",
    "studies/**/*.svg",
    "examples/*.py",
    "examples/*.ipynb",
)
_LINK = re.compile(r"\]\(([^)#:]+)")


def on_files(files: Any, config: Any) -> Any:
    """Add the README as ``start.md``, and the other documents, plots and examples."""
    found = {
        path.relative_to(ROOT).as_posix(): path
        for glob in BESIDE
        for path in ROOT.glob(glob)
    }
    for uri, path in sorted({**found, "start.md": ROOT / "README.md"}.items()):
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Point each link to a file at the place of this file in the site."""
    uris = {str(Path(file.abs_src_path).resolve()): file.src_uri for file in files}
    here, folder = (
        Path(page.file.abs_src_path).parent,
        posixpath.dirname(page.file.src_uri),
    )

    def placed(link: re.Match[str]) -> str:
        target = (here / link[1]).resolve()
        uri = uris.get(str(target / "README.md" if target.is_dir() else target))
        return f"]({posixpath.relpath(uri, folder or '.')}" if uri else link[0]

    return _LINK.sub(placed, markdown)
