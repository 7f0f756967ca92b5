"""RLlib in words: what reports and exports say of it. It imports neither ray nor torch."""

from __future__ import annotations

from autocompile.settings.libraries import Library

RLLIB = Library(
    name="rllib",
    title="RLlib",
    kinds=("AlgorithmConfig", "RLModule", "RLModuleSpec", "MultiRLModuleSpec"),
    module="an RLModule",
    calls="forward_exploration(), forward_inference() and forward_train()",
    use=(
        "from autocompile.rllib import tuned",
        'config = tuned(config, "tuned.json")',
    ),
)
