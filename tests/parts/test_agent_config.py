"""The settings of each agent."""

from __future__ import annotations

from algorithm.agents.acer.agent import Acer
from algorithm.config.loader import resolve
from algorithm.parts.agent_config import AgentConfigs


def test_a_role_has_its_own_settings_and_others_have_the_settings_of_the_run():
    tree = {
        "base_config": {"algorithm": "ACER", "seed": 3, "max_step": 100, "device": "cpu"},
        "replay_config": {"capacity": 500},
        "ma_config": {"wolf": {"replay_config": {"capacity": 700}, "base_config": {"nn": "wolf.py"}}},
    }
    configs = AgentConfigs(resolve([("test", tree)]))
    assert list(configs.by_role) == ["wolf"]
    wolf, sheep = configs.for_role("wolf"), configs.for_role("sheep")
    assert sheep is configs.default
    assert (wolf.replay.capacity, wolf.network_file) == (700, "wolf.py")
    assert (sheep.replay.capacity, sheep.network_file) == (500, "nn.py")
    for config in (wolf, sheep):
        assert (config.make_agent, config.section, config.seed, config.max_step) == (Acer, "acer_config", 3, 100)
        assert config.placement.device == "cpu"
