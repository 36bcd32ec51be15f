"""Unity scenes in the editor or in built players."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar

from algorithm.adapters.adapter import EnvConfig, StartCheck
from algorithm.adapters.scenes.adapter import SceneAdapter
from algorithm.adapters.scenes.launch import LaunchConfig
from algorithm.adapters.scenes.ports import check_ports
from algorithm.adapters.unity.launch import UnityLaunchConfig
from algorithm.adapters.unity.names import rename_metrics, split_team

FIRST_PORT, N_COMMON_PORTS = 5005, 8  # ports of players that are checked when no run is given


class UnityAdapter(SceneAdapter):
    """An adapter of Unity scenes; each team of a behavior is a role. Raises what a SceneAdapter does."""

    launch_config: ClassVar[type[LaunchConfig]] = UnityLaunchConfig
    section: ClassVar[str | None] = UnityLaunchConfig.section
    takes_parameters: ClassVar[bool] = True
    unsupported_settings: ClassVar[Mapping[str, str]] = {
        "env_args": "reset_config holds the parameters of a scene",
        "max_step_each_iter": "Max Step of the agent in Unity limits its episodes",
        "env_timeout": "base_config.unity_args.timeout_wait is the limit",
        "env_wrappers": "they wrap environments in Python",
        "ignore_observations": "leave the sensor out in Unity",
    }
    packages: ClassVar[Sequence[str]] = ("mlagents-envs",)
    rename_metrics = staticmethod(rename_metrics)

    @classmethod
    def list_start_checks(cls, config: EnvConfig | None) -> Sequence[StartCheck]:
        checks = super().list_start_checks(config)
        protocol = StartCheck(name="handshake", run=check_protocol, in_subprocess=True)
        if config is not None:
            return [protocol, *checks]
        players = partial(check_ports, range(FIRST_PORT, FIRST_PORT + N_COMMON_PORTS), "players take others")
        return [*checks, StartCheck(name="ports of players", run=players), protocol]

    def split_team(self, behavior: str) -> tuple[str, str]:
        return split_team(behavior)


def check_protocol() -> str:
    """Exchange messages with a scene over gRPC, and return the versions of the packages that took part."""
    from algorithm.adapters.unity.self_test import run_self_test  # which loads ML-Agents' client

    return run_self_test()
