"""An amount is to be paid exactly, with as few coins as can be. The mask stands in `info`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

COINS = (1, 5, 7, 8)
MOST = 24
FEWEST = 3  # coins that every amount needs; the largest one that fits takes 3.8 on average


class Coins(gymnasium.Env):
    """Amounts are those up to `most` that need `fewest` coins, so that the best return is the same of all of them.

    One sees what remains, and pays one of `coins` at a step for a reward of -1.

    `info["action_mask"]` [coins] is 1 for coins that are not larger than what remains, and 0 for all of them at the
    end. `step` raises ValueError for a coin that is too large. A coin of 1 is needed, so that all can be paid.
    """

    def __init__(self, coins: Sequence[int] = COINS, most: int = MOST, fewest: int = FEWEST):
        if 1 not in coins:
            raise ValueError(f"coins {tuple(coins)}: one of them must be 1")
        self.coins, self.amounts = np.array(coins), amounts(coins, most, fewest)
        self.observation_space = spaces.Discrete(most + 1)
        self.action_space = spaces.Discrete(len(self.coins))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict]:
        """A new amount."""
        super().reset(seed=seed)
        self.remaining = int(self.np_random.choice(self.amounts))
        return self.remaining, self._info()

    def step(self, action: int) -> tuple[int, float, bool, bool, dict]:
        """Pay a coin."""
        coin = int(self.coins[action])
        if coin > self.remaining:
            raise ValueError(f"a coin of {coin} is more than the {self.remaining} that remain")
        self.remaining -= coin
        return self.remaining, -1.0, self.remaining == 0, False, self._info()

    def _info(self) -> dict[str, np.ndarray]:
        return {"action_mask": (self.coins <= self.remaining).astype(np.int8)}


def optimum(amount: int, coins: Sequence[int] = COINS) -> float:
    """The best return for an amount: minus the fewest coins, by dynamic programming."""
    fewest = [0]
    for paid in range(1, amount + 1):
        fewest.append(1 + min(fewest[paid - coin] for coin in coins if coin <= paid))
    return -float(fewest[amount])


def amounts(coins: Sequence[int] = COINS, most: int = MOST, fewest: int = FEWEST) -> list[int]:
    """Those that are asked for. Raises ValueError where there are none."""
    found = [amount for amount in range(1, most + 1) if optimum(amount, coins) == -fewest]
    if not found:
        raise ValueError(f"no amount up to {most} needs {fewest} of the coins {tuple(coins)}")
    return found


def mean_optimum() -> float:
    """The mean of `optimum` over all amounts that are asked for."""
    return -float(FEWEST)


def make(**env_args: Any) -> gymnasium.Env:
    """What `env_name: env.py` calls."""
    return Coins(**env_args)
