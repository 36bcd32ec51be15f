"""The settings of A2C."""

from __future__ import annotations

from dataclasses import dataclass

from algorithm.agents.settings import StateValueSettings


@dataclass(frozen=True, kw_only=True)
class A2CSettings(StateValueSettings):
    """The section `a2c_config`; default_config.yaml has the defaults, units and meanings."""
