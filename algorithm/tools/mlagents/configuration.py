"""The keys of a trainer configuration of ML-Agents 1.1 with the settings that they become, for each trainer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator

from algorithm.config.sections import normalize_device
from algorithm.config.yaml_layers import load_defaults
from algorithm.parts.env_folder import is_file_name
from algorithm.tools.mlagents.keys import (
    UNSET,
    USE_DEFAULT,
    Count,
    Integer,
    Keys,
    Number,
    Positive,
    Schedule,
    Text,
    UnsupportedValue,
    lost,
    to,
)

# ML-Agents' values at the end of linear schedules, by hyperparameter, with the setting that replaces it.
LINEAR_ENDS: Mapping[str, tuple[str, float]] = {"beta": ("entropy_coef", 1e-5), "epsilon": ("clip_ratio", 0.1)}
NO_RND_NETWORK = "nn.py defines the encoders; auxiliaries.rnd.units are network_settings.hidden_units"
NO_CURIOSITY_NETWORK = "nn.py defines the encoder of curiosity; its models have 256 units, as in ML-Agents"
ONE_BATCH = "a batch of demonstrations is part of each update of the agent"
NO_MODEL = "models of ML-Agents cannot be loaded"
AT_COMMAND_LINE = "it is an option of the command line: {}"
WHOLE_SEQUENCES = (
    "with a memory, a minibatch has whole sequences of agents, whose number is not known: ppo_config.minibatches is 1, "
    "and can be at most the number of agents"
)


# Sections of the run.


def _convert_port(port: int, configuration: Configuration) -> int:
    if configuration.env_settings.env_path is None:
        raise UnsupportedValue(
            "it is the port of players, and there is no env_settings.env_path; the editor uses port 5004 (--port)"
        )
    return port


def _convert_num_envs(count: int, configuration: Configuration) -> int:
    if count > configuration.env_settings.count_envs():
        raise UnsupportedValue(
            "there is no env_settings.env_path, and one editor: base_config.n_envs is 1; set it together with "
            "base_config.unity_args.build_path",
            used_value=1,
        )
    return count


def _convert_seed(seed: int, configuration: Configuration) -> int:
    if seed < 0:
        raise UnsupportedValue(
            "random seeds are not supported; base_config.seed is the same for each run unless --seed is given"
        )
    return seed


def _convert_device(name: str, configuration: Configuration) -> str:
    try:
        return normalize_device(name)
    except ValueError as error:
        raise UnsupportedValue(f"base_config.device has no {name}; {error}") from error


def _convert_run_id(run_id: str, configuration: Configuration) -> str:
    if not is_file_name(run_id) or "{" in run_id:
        raise UnsupportedValue("it cannot be the name of a folder")
    return run_id


class EnvSettings(Keys):
    """The keys of `env_settings`."""

    env_path: Text | None = to("base_config.unity_args.build_path")
    env_args: list[Text] | None = to("base_config.unity_args.additional_args")
    base_port: Integer = to("base_config.unity_args.base_port", _convert_port)
    num_envs: Count = to("base_config.n_envs", _convert_num_envs, default=1)
    num_areas: Count = lost("areas are not replicated; build a scene that contains them", (1,))
    timeout_wait: Number = to("base_config.unity_args.timeout_wait", engine_default=60)
    seed: Integer = to("base_config.seed", _convert_seed)
    max_lifetime_restarts: Integer = to(
        "base_config.max_env_restarts", lambda count, _: None if count < 0 else count, engine_default=10
    )
    restarts_rate_limit_n: Integer = lost("a player that failed starts again after 1, 2, 4 ... 60 seconds")
    restarts_rate_limit_period_s: Integer = lost("as for restarts_rate_limit_n")

    def count_envs(self) -> int:
        """Return the number of environments: that of the file, or 1 without the path of a player."""
        return 1 if self.env_path is None else self.num_envs


class EngineSettings(Keys):
    """The keys of `engine_settings`."""

    width: Integer = to("base_config.unity_args.width", engine_default=84)
    height: Integer = to("base_config.unity_args.height", engine_default=84)
    quality_level: Integer = to("base_config.unity_args.quality_level", engine_default=5)
    time_scale: Number = to("base_config.unity_args.time_scale", engine_default=20)
    target_frame_rate: Integer = to("base_config.unity_args.target_frame_rate", engine_default=-1)
    capture_frame_rate: Integer = to("base_config.unity_args.capture_frame_rate", engine_default=60)
    no_graphics: bool = to("base_config.unity_args.no_graphics", engine_default=False)
    no_graphics_monitor: bool = lost("all players have the same graphics; --run --render shows one", (False,))


class TorchSettings(Keys, extra="allow"):
    """The keys of `torch_settings`."""

    device: Text | None = to("base_config.device", _convert_device)


class CheckpointSettings(Keys):
    """The keys of `checkpoint_settings`."""

    run_id: Text = to("base_config.name", _convert_run_id)
    results_dir: Any = lost("runs are written to ./runs", ("results",))
    initialize_from: Text | None = to("base_config.initialize_from", _convert_run_id)
    load_model: Any = lost(AT_COMMAND_LINE.format("--resume"), (False,))
    resume: Any = lost(AT_COMMAND_LINE.format("--resume"), (False,))
    force: Any = lost(AT_COMMAND_LINE.format("--force"), (False,))
    train_model: Any = lost("a command trains unless --run is given", (False,))
    inference: Any = lost(AT_COMMAND_LINE.format("--run"), (False,))


# Sections of a behavior.


def _convert_strength(strength: float, configuration: Configuration) -> float:
    if strength < 0:
        raise UnsupportedValue("the strength of the scene's reward must be at least 0")
    return strength


def _convert_even_checkpoints(even: bool, configuration: Configuration) -> Any:
    """Return the interval at which as many checkpoints are saved in a run as are kept."""
    return max(1, configuration.max_steps // (configuration.keep_checkpoints or 5)) if even else USE_DEFAULT


def _check_even(value: int) -> int:
    if value % 2:
        raise ValueError("it must be an even number above 0")
    return value


class Memory(Keys, extra="allow"):
    """The keys of `network_settings.memory`."""

    memory_size: Annotated[Count, AfterValidator(_check_even)] = 128
    sequence_length: Count = lost(
        "gradients pass through the whole rollout, rollout_length steps",
        (),
        lambda configuration: configuration.algorithm in ("PPO", "POCA"),
        default=64,
    )


class NetworkSettings(Keys, extra="allow"):
    """The keys of `network_settings`."""

    normalize: bool = False
    hidden_units: Count = 128
    num_layers: Integer = 2
    vis_encode_type: Literal["simple", "nature_cnn", "resnet", "match3", "fully_connected"] = "simple"
    memory: Memory | None = UNSET
    goal_conditioning_type: Literal["hyper", "none"] = lost(
        "goal signals are observations like the others; there are no hypernetworks", ("none",)
    )
    deterministic: Any = lost(
        "evaluation uses the most probable action, and so does --run with --disable-sample", (False,)
    )


class Extrinsic(Keys):
    """The keys of `reward_signals.extrinsic`."""

    gamma: Number = to("agent.gamma")
    strength: Number = to("agent.reward_scale", _convert_strength)
    network_settings: Any = lost("nn.py defines the critic's network")


class Curiosity(Keys):
    """The keys of `reward_signals.curiosity`."""

    strength: Number = to("auxiliaries.curiosity.strength", default=1.0)
    learning_rate: Number = to("auxiliaries.curiosity.learning_rate", default=3e-4)
    gamma: Number = lost("the reward of curiosity is added to that of the scene, and has its discount")
    encoding_size: Integer | None = lost(NO_CURIOSITY_NETWORK)
    network_settings: Any = lost(NO_CURIOSITY_NETWORK)


class RndNetwork(Keys, extra="allow"):
    """The keys of `reward_signals.rnd.network_settings`."""

    lost_reason = NO_RND_NETWORK

    hidden_units: Count = to("auxiliaries.rnd.units", others=("auxiliaries.rnd.outputs",), default=128)


class Rnd(Keys):
    """The keys of `reward_signals.rnd`."""

    strength: Number = to("auxiliaries.rnd.strength", default=1.0)
    gamma: Number = to("auxiliaries.rnd.gamma", default=0.99)
    learning_rate: Number = to("auxiliaries.rnd.learning_rate", default=1e-4)
    network_settings: RndNetwork = RndNetwork()
    encoding_size: Integer | None = lost(NO_RND_NETWORK)


def _collect_sources(path: str, configuration: Configuration) -> list[str]:
    """Return the files of demonstrations that a behavior names."""
    users = (configuration.reward_signals.gail, configuration.behavioral_cloning)
    return list(dict.fromkeys(each.demo_path for each in users if each))


def _convert_cloning_steps(steps: int, configuration: Configuration) -> Any:
    """Return the part of the run in which cloning ends; ML-Agents' 0 is no end."""
    return min(1.0, round(steps / configuration.max_steps, 6)) if steps else USE_DEFAULT


class GailNetwork(Keys, extra="allow"):
    """The keys of `reward_signals.gail.network_settings`."""

    lost_reason = "nn.py defines the encoder; auxiliaries.gail.units are network_settings.hidden_units"

    hidden_units: Count = to("auxiliaries.gail.units", default=128)


class Gail(Keys):
    """The keys of `reward_signals.gail`."""

    demo_path: Text = to("demonstration_config.sources", _collect_sources, default=...)
    strength: Number = to("auxiliaries.gail.strength", default=1.0)
    gamma: Number = to("auxiliaries.gail.gamma", default=0.99)
    learning_rate: Number = to("auxiliaries.gail.learning_rate", default=3e-4)
    use_actions: bool = to(
        "auxiliaries.gail.input", lambda used, _: "observation_and_action" if used else "observation", default=False
    )
    use_vail: bool = lost("the discriminator has no variational bottleneck", (False,))
    network_settings: GailNetwork = GailNetwork()
    encoding_size: Integer | None = lost(GailNetwork.lost_reason)


class BehavioralCloning(Keys):
    """The keys of `behavioral_cloning`."""

    demo_path: Text = to("demonstration_config.sources", _collect_sources, default=...)
    strength: Number = to("auxiliaries.behavior_cloning.strength", default=1.0)
    steps: Integer = to("auxiliaries.behavior_cloning.end", _convert_cloning_steps, default=0)
    batch_size: Count | None = to("auxiliaries.behavior_cloning.batch_size")
    num_epoch: Integer | None = lost(ONE_BATCH)
    samples_per_update: Integer = lost(ONE_BATCH)


class RewardSignals(Keys):
    """The keys of `reward_signals`."""

    extrinsic: Extrinsic | None = UNSET
    curiosity: Curiosity | None = UNSET
    rnd: Rnd | None = UNSET
    gail: Gail | None = UNSET


# Hyperparameters of the trainers.


def _has_memory(configuration: Configuration) -> bool:
    return configuration.network_settings.memory is not None


def _convert_buffer_size(steps: int, configuration: Configuration) -> int:
    """Return the number of minibatches of a buffer of `steps` steps."""
    if _has_memory(configuration):
        raise UnsupportedValue(WHOLE_SEQUENCES)
    return max(1, round(steps / configuration.hyperparameters.batch_size))


def _convert_batch_size(steps: int, configuration: Configuration) -> int:
    """Return the number of replayed sequences that hold a batch of `steps` steps."""
    memory = configuration.network_settings.memory
    return max(1, round(steps / (memory.sequence_length if memory else configuration.get_default("sequence_length"))))


def _convert_start(steps: int, configuration: Configuration) -> int:
    """Return when learning starts: ML-Agents also waits for a full batch."""
    return max(steps, configuration.hyperparameters.batch_size)


def _convert_ratio(steps: float, configuration: Configuration) -> float:
    """Return the updates per collected rollout that correspond to ML-Agents' steps per update.

    ML-Agents counts the decisions of all agents and makes one update for every `steps_per_update` of them. A rollout
    has `rollout_length` decisions of every agent and is followed by `replay_ratio` updates, so the ratio is
    rollout_length * agents / steps_per_update; it does not depend on sequence_length, since a batch has as many steps
    as in ML-Agents. A trainer configuration does not state the number of agents in a scene. The ratio assumes one agent
    in each environment, the smallest number; Samara's default applies if it is larger.
    """
    ratio = configuration.get_default("rollout_length") * configuration.env_settings.count_envs() / steps
    if ratio <= (default := configuration.get_default("replay_ratio")):
        raise UnsupportedValue(
            f"as many updates need a replay_ratio of {ratio:g} for each agent in the scene, whose number is not known; "
            f"it stays {default:g}"
        )
    return ratio


class PocaHyperparameters(Keys):
    """The hyperparameters of the trainer poca."""

    learning_rate: Positive = to("agent.learning_rate", default=3e-4)
    learning_rate_schedule: Schedule = to("agent.learning_rate_schedule", default="linear")
    beta: Number = to("agent.entropy_coef", default=5e-3)
    beta_schedule: Schedule = to("agent.entropy_coef_schedule", default="linear")
    batch_size: Count = lost(WHOLE_SEQUENCES, (), _has_memory, default=1024)
    buffer_size: Count = to("agent.minibatches", _convert_buffer_size, default=10240)
    num_epoch: Count = to("agent.epochs", default=3)
    # ML-Agents clips ratios and values by the same number.
    epsilon: Positive = to("agent.clip_ratio", others=("agent.value_clip",), default=0.2)
    epsilon_schedule: Schedule = to("agent.clip_ratio_schedule", default="linear")
    lambd: Number = to("agent.gae_lambda", default=0.95)


class PpoHyperparameters(PocaHyperparameters):
    """The hyperparameters of the trainer ppo."""

    shared_critic: bool = lost(
        "policy and critic share a memory and the layers before it", (True,), _has_memory, default=False
    )


class SelfPlaySettings(Keys, extra="allow"):
    """The keys of `self_play`, whose steps are here those of the team that learns."""

    save_steps: Count = to("opponent_config.save_steps", default=20_000)
    team_change: Count = to("opponent_config.team_change")
    swap_steps: Count = to("opponent_config.swap_steps", default=2_000)
    window: Count = to("opponent_config.window", default=10)
    play_against_latest_model_ratio: Number = to("opponent_config.play_against_latest_model_ratio", default=0.5)
    initial_elo: Number = to("opponent_config.initial_elo", default=1200.0)


class SacHyperparameters(Keys):
    """The hyperparameters of the trainer sac."""

    learning_rate: Positive = to(
        "agent.learning_rate_critic", others=("agent.learning_rate_policy", "agent.learning_rate_alpha"), default=3e-4
    )
    learning_rate_schedule: Schedule = to("agent.learning_rate_schedule")
    batch_size: Count = to("agent.batch_size", _convert_batch_size, default=128)
    buffer_size: Count = to("replay_config.capacity")
    buffer_init_steps: Integer = to("agent.learning_starts", _convert_start, default=0)
    steps_per_update: Positive = to("agent.replay_ratio", _convert_ratio)
    reward_signal_steps_per_update: Number = lost("auxiliaries learn in every update of the agent")
    save_replay_buffer: bool = lost("a checkpoint always holds the replay", (True,))
    tau: Number = to("agent.tau")
    init_entcoef: Positive = to("agent.init_log_alpha", lambda alpha, _: round(math.log(alpha), 4), default=1.0)


# Trainers.


class Configuration(Keys):
    """The keys of a run and of one behavior, whose trainer is known.

    Attributes:
        trainer: Name of the trainer.
        algorithm: Name of the algorithm that replaces the trainer.
        note: Line for the user about the replacement.
    """

    trainer: ClassVar[str]
    algorithm: ClassVar[str]
    note: ClassVar[str]

    env_settings: EnvSettings = EnvSettings()
    engine_settings: EngineSettings = EngineSettings()
    torch_settings: TorchSettings = TorchSettings()
    checkpoint_settings: CheckpointSettings = CheckpointSettings()
    debug: Any = lost(AT_COMMAND_LINE.format("--debug"), (False,))
    trainer_type: str = "ppo"
    network_settings: NetworkSettings = NetworkSettings()
    reward_signals: RewardSignals = RewardSignals()
    behavioral_cloning: BehavioralCloning | None = UNSET
    self_play: SelfPlaySettings | None = UNSET
    max_steps: Count = to("base_config.max_step", default=500_000)
    summary_freq: Count = to("base_config.log_every")
    checkpoint_interval: Count = to("base_config.save_every")
    keep_checkpoints: Count = to("base_config.keep_checkpoints")
    even_checkpoints: bool = to("base_config.save_every", _convert_even_checkpoints)
    time_horizon: Integer = lost(
        "it divides trajectories for on-policy learning; sequences of sequence_length steps replace it"
    )
    threaded: Any = lost("scenes always run during updates", (True,))
    init_path: Any = lost(NO_MODEL)
    framework: Any = lost("torch is the only framework, as in ML-Agents", ("pytorch",))
    hyperparameters: Any = UNSET  # a section of the trainer

    @classmethod
    def explain_unknown(cls, path: str) -> str:
        others = [name for name, other in TRAINERS.items() if path in other.list_paths()]
        if others and path.startswith("hyperparameters."):
            return f"it is a key of {others[0]}, not of {cls.trainer}, which ML-Agents rejects"
        return super().explain_unknown(path)

    def get_default(self, key: str) -> Any:
        """Return Samara's default of a setting of the algorithm."""
        return load_defaults()[f"{self.algorithm.lower()}_config"][key]


class PocaConfiguration(Configuration):
    """The keys of a behavior with the trainer poca."""

    trainer, algorithm = "poca", "POCA"
    note = "poca becomes POCA, for teams of up to poca_config.team_size agents; agents without a group are teams of one"

    time_horizon: Count = to("agent.rollout_length", default=64)
    hyperparameters: PocaHyperparameters = PocaHyperparameters()

    def make_settings(self) -> dict[str, tuple[Any, str]]:
        """Return settings of the algorithm that follow from no key, as {setting: (value, comment)}."""
        settings: dict[str, tuple[Any, str]] = {"reward_normalization": ("return_std", "rewards of any size")}
        for key, (name, end) in LINEAR_ENDS.items():
            start = getattr(self.hyperparameters, key)
            if start and getattr(self.hyperparameters, f"{key}_schedule") == "linear":
                fraction = float(f"{end / start:.6g}")
                settings[f"{name}_final_fraction"] = (fraction, f"{key} ends at {end:g} in the trainer")
        if self.network_settings.memory:
            settings["minibatches"] = (1, "at most the number of agents, since minibatches have whole sequences")
        return settings


class PpoConfiguration(PocaConfiguration):
    """The keys of a behavior with the trainer ppo."""

    trainer, algorithm = "ppo", "PPO"
    note = "ppo becomes PPO, whose buffer has rollout_length (time_horizon) steps of every agent"

    hyperparameters: PpoHyperparameters = PpoHyperparameters()


class SacConfiguration(Configuration):
    """The keys of a behavior with the trainer sac."""

    trainer, algorithm = "sac", "SAC"
    note = "sac becomes SAC with target critics instead of a network of state values"

    hyperparameters: SacHyperparameters = SacHyperparameters()

    def make_settings(self) -> dict[str, tuple[Any, str]]:
        """Return settings of the algorithm that follow from no key, as {setting: (value, comment)}."""
        settings: dict[str, tuple[Any, str]] = {"target_d_alpha": (0.2, "the trainer's target entropy")}
        if memory := self.network_settings.memory:
            key = "network_settings.memory.sequence_length"
            settings["sequence_length"] = (memory.sequence_length, key)
            comment = f"half of {key}, since stored memories come from older networks"
            settings["burn_in_step"] = (memory.sequence_length // 2, comment)
        return settings


TRAINERS: Mapping[str, type[Any]] = {
    configuration.trainer: configuration for configuration in (PpoConfiguration, PocaConfiguration, SacConfiguration)
}
