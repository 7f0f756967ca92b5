"""What a user may paste of an export."""

from __future__ import annotations


def programs_in(text: str) -> list[str]:
    """The export as it stands, and each of its alternatives in place of what is above it."""
    every = text.split("\n\n")
    others = [b for b in every if b.startswith("# # In place of")]
    own = "\n\n".join(block for block in every if block not in others)
    uncommented = [
        "\n".join(
            line.removeprefix("#").removeprefix(" ") for line in block.splitlines()
        )
        for block in others
    ]
    return [own, *uncommented]
