"""RLlib: an AlgorithmConfig whose env runners and learners use the tuned settings."""

from __future__ import annotations

import keyword

from autocompile.errors import ExportError
from autocompile.export.choices import Report, choices, command, header, is_rl
from autocompile.export.text import comment, literal, one_line, program
from autocompile.settings.phases import phase_of
from autocompile.settings.tuned import Tuned

__all__ = ["export"]


def export(report: Report) -> str:
    """A script that defines ``config``, or ``apply(config)`` if the target has no algorithm.

    It contains the settings.

    Raises:
        ExportError: the target is not an RLModule, or no phase that RLlib runs has a result.
    """
    found = choices(report)
    if not is_rl(report):
        raise ExportError(
            "RLlib has no form for this result: the target is not an RLModule",
            f"its phases: {', '.join(found)}",
            hint=command(report, "--to python"),
        )
    settings = Tuned.from_report(report).to_dict()
    settings["phases"] = {n: c for n, c in settings["phases"].items() if phase_of(n).in_rllib}
    if not settings["phases"]:
        raise ExportError(
            f"RLlib has no form for the phases {', '.join(found)}",
            hint=command(report, "--to python"),
        )
    algorithm = _algorithm(report)
    evidence = [comment(f"{name}: {found[name].evidence}") for name in settings["phases"]]
    use = _APPLY
    if algorithm:
        use = f"config = tuned({algorithm[1]}(), SETTINGS)"
    return program(
        header(report, "RLlib settings") + "".join(evidence),
        f"from {algorithm[0]} import {algorithm[1]}" if algorithm else "",
        "from autocompile.rllib import tuned",
        f"# The same as a file: {one_line(command(report, '-o tuned.json'))}\n"
        f"SETTINGS = {literal(settings, '')}",
        use,
    )


_APPLY = '''
def apply(config):
    """A copy of an AlgorithmConfig whose runners and learners use the settings."""
    return tuned(config, SETTINGS)
'''


def _algorithm(report: Report) -> tuple[str, str] | None:
    """Module and class of the target's configuration; None if not importable."""
    name = str(report["target"].get("algorithm") or "")
    module, colon, of = name.partition(":")
    parts = [*module.split("."), of]
    importable = all(p.isidentifier() and not keyword.iskeyword(p) for p in parts)
    return (module, of) if colon and importable and parts[0] != "__main__" else None
