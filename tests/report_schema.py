"""The JSON schema of ``report.json``, made of its types.

PYTHONPATH=tests:. python tests/report_schema.py    # writes autocompile/report/schema.json
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import autocompile
from autocompile.settings.config import CompileConfig
from autocompile.store.report import Report

FILE = Path(autocompile.__file__).parent / "report" / "schema.json"
PLAIN = {str: "string", bool: "boolean", int: "integer", float: "number"}


def schema() -> dict[str, Any]:
    """The schema of a report."""
    parts: dict[str, Any] = {}
    of(Report, parts)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "report.json of autocompile, schema 1",
        **parts.pop("Report"),
        "$defs": parts,
    }


def of(kind: Any, parts: dict[str, Any]) -> dict[str, Any]:
    """The schema of a type; those of its parts are put into ``parts`` by their names."""
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return {}
    if kind in PLAIN:
        return {"type": PLAIN[kind]}
    if origin is Literal:
        return {"enum": list(args)}
    if origin in (Union, UnionType):
        return {"anyOf": [of(args[0], parts), {"type": "null"}]}
    if origin is tuple:
        return {"type": "array", "items": of(args[0], parts)}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": of(args[1], parts)}
    name = kind.__name__
    if name not in parts and issubclass(kind, Enum):
        parts[name] = {"enum": [each.value for each in kind]}
    elif name not in parts:
        assert is_dataclass(kind), kind
        hints, own = get_type_hints(kind), fields(kind)
        defaults = [f.default is MISSING and f.default_factory is MISSING for f in own]
        parts[name] = {
            "description": " ".join((kind.__doc__ or "").split("\n\n")[0].split()),
            "type": "object",
            "additionalProperties": False,
            "required": [
                f.name for f, needed in zip(own, defaults, strict=True) if needed
            ],
            "properties": {f.name: of_field(f.name, hints[f.name], parts) for f in own},
        }
    return {"$ref": f"#/$defs/{name}"}


def of_field(name: str, kind: Any, parts: dict[str, Any]) -> dict[str, Any]:
    """A setting has the keys of a CompileConfig."""
    if kind is not CompileConfig:
        return of(kind, parts)
    keys: dict[str, Any] = {key: {} for key in CompileConfig().to_dict()}
    keys["guards"] = {"const": "all", "description": "of older versions"}
    return {"type": "object", "properties": keys, "additionalProperties": False}


def text() -> str:
    """The content of the file."""
    return json.dumps(schema(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), "utf-8")
