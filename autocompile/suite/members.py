"""The members of a suite: what its name, a folder of targets or a list in TOML stands for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from autocompile.commands.toml import parse_toml, read_toml
from autocompile.errors import UsageError
from autocompile.settings.searchspace import SearchSpace
from autocompile.space.space import USUAL_PHASES
from autocompile.store import targets
from autocompile.suite.rows import Member

_BATCH_SIZE = 8  # one size, since there are many models
_KEYS = ("target", "phases", "batch_sizes")


def members_of(
    what: str, phases: tuple[str, ...] | None, batch_sizes: tuple[int, ...] | None
) -> tuple[Member, ...]:
    """The members of a suite: one run for each phase of each model.

    Args:
        what: the name of a suite, a folder of targets, or a list of models in TOML.
        phases: instead of what the list or the model says.
        batch_sizes: likewise.

    Raises:
        UsageError: there is no such suite, or the list is none.
    """
    models, defaults = _models_of(what)
    members: list[Member] = []
    for model in models:
        listed = _listed(what, model, defaults)
        usual_phases, usual_sizes = _usual(listed.target)
        sizes = batch_sizes or listed.batch_sizes or usual_sizes
        for phase in phases or listed.phases or usual_phases or (None,):
            one = Member(
                target=listed.target,
                folder=_free_folder(listed.target, phase, members),
                phases=(phase,) if phase else None,
                batch_sizes=sizes,
            )
            members.append(one)
    return tuple(members)


def _models_of(what: str) -> tuple[list[Any], dict[str, Any]]:
    """The models as they are listed, and what the list says of all of them."""
    own = _lists()
    path = Path(what)
    if what in own:
        return own[what], {}
    if path.is_dir():
        return _targets_in(path), {}
    if path.suffix == ".toml":
        return _list_of(path)
    raise UsageError(
        f"there is no suite {what}",
        f"suites: {', '.join(own)}; or a folder of targets, or a list of them in TOML",
        hint='models = ["timm:resnet18", "model.py"]   (a whole list.toml)',
    )


def _lists() -> dict[str, list[Any]]:
    """The suites that come with the package, by name."""
    source = resources.files(__package__).joinpath("suites.toml").read_text("utf-8")
    return {name: one["models"] for name, one in parse_toml(source).items()}


def _targets_in(folder: Path) -> list[Any]:
    """The files of a folder that define a target, by name."""
    found = [path for path in sorted(folder.glob("*.py")) if _is_target(path)]
    if not found:
        raise UsageError(
            f"no file in {folder} defines get_model() or a Model with get_init_inputs()",
            hint="autocompile init model.py   (writes a file to start from)",
        )
    return [str(path) for path in found]


def _is_target(path: Path) -> bool:
    # Read as text: the parent runs no code of a user's.
    text = path.read_text("utf-8", "replace") if path.is_file() else ""
    definition = r"^def get_model\b|^def get_init_inputs\b"
    return bool(re.search(definition, text, re.MULTILINE))


def _list_of(path: Path) -> tuple[list[Any], dict[str, Any]]:
    """The models of a TOML file, and its keys beside them."""
    data = read_toml(path)
    models = data.pop("models", None)
    if not isinstance(models, list) or not models or {*data} - {*_KEYS}:
        raise UsageError(
            f"{path} is no list of models",
            hint='models = ["timm:resnet18", "model.py"]   (beside it: phases, batch_sizes)',
        )
    return models, data


def _listed(what: str, model: Any, defaults: Mapping[str, Any]) -> Member:
    """A model of a list with the list's defaults; it has no folder yet.

    Raises:
        UsageError: it is neither a target nor a table with one.
    """
    try:
        own = {"target": model} if isinstance(model, str) else model
        given = {**defaults, **own}
        if unknown := {*given} - {*_KEYS}:
            raise ValueError(f"{min(unknown)} is no key")
        listed: Member = Member.from_dict({**given, "folder": ""})
        SearchSpace(batch_sizes=listed.batch_sizes)  # refuses what is no size
    except (TypeError, ValueError, UsageError) as error:
        raise UsageError(
            f"{what}: {model!r} is no model: {error}",
            hint='{ target = "model.py", phases = ["forward"], batch_sizes = [1, 16] }',
        ) from None
    return listed


def _usual(target: str) -> tuple[tuple[str, ...] | None, tuple[int, ...] | None]:
    """The phases and batch sizes of a model for which nothing is said."""
    if targets.library_model(target):
        return USUAL_PHASES, (_BATCH_SIZE,)
    # A file has phases and sizes of its own; its inputs may be of a single size.
    return None, None


def _free_folder(target: str, phase: str | None, members: list[Member]) -> str:
    """The name of a member's folder, numbered where a model is listed again."""
    name = targets.short_name(target)
    if phase:
        name += f".{phase}"
    taken = [m.folder for m in members]
    count = sum(folder == name or folder.startswith(f"{name}+") for folder in taken)
    return f"{name}+{count}" if count else name
