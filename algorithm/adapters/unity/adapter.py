"""Unity scenes in the editor or in built players."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar

import numpy as np

from algorithm.adapters.adapter import EnvConfig, StartCheck, UnsupportedEnvironment
from algorithm.adapters.scenes.adapter import SceneAdapter
from algorithm.adapters.scenes.launch import LaunchConfig
from algorithm.adapters.scenes.ports import check_ports
from algorithm.adapters.scenes.scene import Batch
from algorithm.adapters.unity.launch import UnityLaunchConfig
from algorithm.adapters.unity.names import rename_metrics, split_team
from algorithm.specs import Role

CAMERA_CHANNELS = (1, 3)  # numbers of channels of a camera's image
FIRST_PORT, N_COMMON_PORTS = 5005, 8  # ports of players that are checked when no run is given


class UnityAdapter(SceneAdapter):
    """An adapter of Unity scenes; each team of a behavior is a role.

    Raises what a SceneAdapter does, also for cameras without graphics.
    """

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

    def check_role(self, agent_role: Role, decisions: Sequence[Batch]) -> None:
        """Raise UnsupportedEnvironment for a camera whose image has a single color, as without graphics."""
        if not self.launch.no_graphics or self.launch.path is None:
            return
        for name, spec in agent_role.obs_specs.items():
            is_camera = len(spec.shape) == 3 and spec.shape[0] in CAMERA_CHANNELS
            if is_camera and all(np.ptp(batch.obs[name]) == 0 for batch in decisions if len(batch)):
                self.close()
                raise UnsupportedEnvironment(
                    f"the sensor {name!r} shows a single color: cameras need graphics, and "
                    "base_config.unity_args.no_graphics is true; set it to false"
                )


def check_protocol() -> str:
    """Exchange messages with a scene over gRPC, and return the versions of the packages that took part."""
    from algorithm.adapters.unity.self_test import run_self_test  # which loads ML-Agents' client

    return run_self_test()
