"""Coins: an amount has to be paid exactly with the fewest coins. The action mask is in `info`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

COINS = (1, 5, 7, 8)
MOST = 24  # largest amount
FEWEST = 3  # coins that every amount needs; a player who always pays the largest coin that fits needs 3.8 on average


class Coins(gymnasium.Env):
    """An amount to be paid coin by coin.

    The observation is the amount that remains. A step pays one coin, with a reward of -1. All amounts need the same
    number of coins, so that the best return is the same for every amount.

    `info["action_mask"]` [number of coins] is 1 for coins that are not larger than the amount that remains. `step`
    raises ValueError for a coin that is larger.

    Args:
        coins: Values of the coins; one of them must be 1, so that every amount can be paid.
        most: Largest amount.
        fewest: Number of coins that every amount needs.
    """

    def __init__(self, coins: Sequence[int] = COINS, most: int = MOST, fewest: int = FEWEST):
        if 1 not in coins:
            raise ValueError(f"coins {tuple(coins)}: one of them must be 1")
        self.coins, self.amounts = np.array(coins), amounts(coins, most, fewest)
        self.observation_space = spaces.Discrete(most + 1)
        self.action_space = spaces.Discrete(len(self.coins))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict]:
        """Draw an amount."""
        super().reset(seed=seed)
        self.remaining = int(self.np_random.choice(self.amounts))
        return self.remaining, self._info()

    def step(self, action: int) -> tuple[int, float, bool, bool, dict]:
        """Pay one coin."""
        coin = int(self.coins[action])
        if coin > self.remaining:
            raise ValueError(f"a coin of {coin} is more than the {self.remaining} that remain")
        self.remaining -= coin
        return self.remaining, -1.0, self.remaining == 0, False, self._info()

    def _info(self) -> dict[str, np.ndarray]:
        return {"action_mask": (self.coins <= self.remaining).astype(np.int8)}


def optimum(amount: int, coins: Sequence[int] = COINS) -> float:
    """Return the best return for an amount, minus its smallest number of coins, by dynamic programming."""
    fewest = [0]
    for paid in range(1, amount + 1):
        fewest.append(1 + min(fewest[paid - coin] for coin in coins if coin <= paid))
    return -float(fewest[amount])


def amounts(coins: Sequence[int] = COINS, most: int = MOST, fewest: int = FEWEST) -> list[int]:
    """Return the amounts up to `most` that need exactly `fewest` coins. Raises ValueError if there are none."""
    found = [amount for amount in range(1, most + 1) if optimum(amount, coins) == -fewest]
    if not found:
        raise ValueError(f"no amount up to {most} needs {fewest} of the coins {tuple(coins)}")
    return found


def mean_optimum() -> float:
    """Return the mean of `optimum` over all amounts."""
    return -float(FEWEST)


def make(**env_args: Any) -> gymnasium.Env:
    """Return the environment; `env_name: env.py` in config.yaml calls this function."""
    return Coins(**env_args)
