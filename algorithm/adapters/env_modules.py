"""Ids that only an import of their module registers; nothing here loads more than the standard library."""

from __future__ import annotations

import re

# Ids by their module: `module:id` imports it.
MODULES = {"minigrid": r"(MiniGrid|BabyAI)-", "pybullet_envs_gymnasium": r"\w+Bullet(Env)?-"}


def add_module_prefix(env_name: str) -> str | None:
    """`module:id` for a bare id that only an import of its module registers; None for any other id."""
    module = next((module for module, pattern in MODULES.items() if re.match(pattern, env_name)), None)
    return f"{module}:{env_name}" if module else None
