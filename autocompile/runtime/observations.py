"""Batches of made-up observations, as an RLModule of RLlib gets them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from autocompile.errors import TargetError

__all__ = ["made_up_batch"]


def made_up_batch(module: Any, count: int) -> dict[str, Any]:
    """What an RLModule is given for so many environments, one step of each if it has a state.

    Observations are drawn from the module's space by numpy's global generator.

    Raises:
        TargetError: nothing can be drawn from such a space.
    """
    generator = np.random.default_rng(np.random.randint(2**31))
    space = module.observation_space
    if not module.is_stateful():
        return {"obs": _observations(space, (count,), generator)}
    state = _repeat(module.get_initial_state(), count)
    return {"obs": _observations(space, (count, 1), generator), "state_in": state}


def _observations(space: Any, lead: tuple[int, ...], generator: np.random.Generator) -> Any:
    """Random observations with leading dimensions, in the space's own dtype."""
    import gymnasium.spaces as spaces

    if isinstance(space, spaces.Dict):
        return {k: _observations(s, lead, generator) for k, s in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_observations(s, lead, generator) for s in space.spaces)
    if isinstance(space, spaces.Box):
        low, high = _finite_bounds(space)
        values = generator.uniform(low, high, size=(*lead, *space.shape))
        # RLlib's connectors make every float64 a float32.
        dtype = np.float32 if space.dtype == np.float64 else space.dtype
        return torch.as_tensor(values.astype(dtype))
    if isinstance(space, spaces.Discrete):
        # RLlib's connectors hand a discrete observation to the module one-hot encoded.
        index = generator.integers(0, int(space.n), size=lead)
        return torch.nn.functional.one_hot(torch.as_tensor(index), int(space.n)).float()
    if isinstance(space, spaces.MultiBinary):
        return torch.as_tensor(generator.integers(0, 2, size=(*lead, *space.shape))).float()
    raise TargetError(
        f"observations of a {type(space).__name__} space cannot be made up",
        hint="define get_inputs(batch_size) in the target file: it gives the batch dict",
    )


def _finite_bounds(space: Any) -> tuple[Any, Any]:
    """A Box' bounds; an open side reaches two past the other bound, or from -1 to 1."""
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    # Some spaces say "unbounded" with the largest number of their dtype: a range that overflows.
    limit = 1e30
    open_low, open_high = low < -limit, high > limit
    bottom = np.where(open_low, np.where(open_high, -1.0, high - 2.0), low)
    top = np.where(open_high, np.where(open_low, 1.0, low + 2.0), high)
    return bottom, top


def _repeat(state: Any, batch_size: int) -> Any:
    if isinstance(state, dict):
        return {name: _repeat(value, batch_size) for name, value in state.items()}
    return torch.as_tensor(state).expand(batch_size, *torch.as_tensor(state).shape).clone()
