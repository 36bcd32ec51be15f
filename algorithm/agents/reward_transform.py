"""The transformation of rewards that an algorithm declares; `training/rewards.py` applies it."""

from __future__ import annotations

from dataclasses import dataclass

from algorithm.agents.settings import ActorCriticSettings, CategoricalSettings


@dataclass(frozen=True, kw_only=True)
class RewardTransform:
    """The transformation of rewards in a batch: clip to [-clip, clip], divide by a statistic of returns, times scale.

    With `return_max`, the discounted sum of divided rewards up to any row so far is within [-return_bound,
    return_bound]; `scale` multiplies this range too. Rewards that auxiliaries add are not counted.
    """

    scale: float
    clip: float | None
    reward_normalization: str | None  # return_std | return_max (see training/rewards.py)
    gamma: float  # discount of the returns that are measured
    return_bound: float | None = None  # return_max: largest magnitude of divided returns, before `scale`

    @classmethod
    def from_settings(cls, settings: ActorCriticSettings | CategoricalSettings) -> RewardTransform:
        """Return the transformation that the settings of an algorithm describe.

        Rewards without a scale are divided by the standard deviation of returns.
        """
        scale, normalization = settings.reward_scale, settings.reward_normalization
        return cls(
            scale=1.0 if scale is None else scale,
            clip=settings.reward_clip,
            reward_normalization="return_std" if scale is None else normalization,
            gamma=settings.gamma,
            return_bound=settings.return_bound,
        )
