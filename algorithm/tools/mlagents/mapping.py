"""The rule for each key of ML-Agents 1.1, of a behavior or the run; trainers.py has the rules for hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from algorithm.config.sections import normalize_device
from algorithm.parts.env_folder import is_file_name
from algorithm.tools.mlagents.trainer_config import (
    USE_DEFAULT,
    Consumed,
    Converter,
    MapsTo,
    Rules,
    TrainerConfig,
    Unsupported,
    UnsupportedValue,
    make_choice,
    make_positive,
    make_unsupported_section,
    to_bool,
    to_integer,
    to_number,
    to_text,
    to_text_list,
)

MEMORY = "network_settings.memory"
# Sections whose unknown keys ML-Agents ignores; it rejects unknown keys of other sections.
LENIENT_SECTIONS = ("network_settings.", "torch_settings.")
# ML-Agents' defaults of keys in a section that a behavior may have. A default is used if the section is present.
SECTION_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    MEMORY: {"memory_size": 128, "sequence_length": 64},
    "reward_signals.curiosity": {"strength": 1.0, "learning_rate": 3e-4},
    "reward_signals.rnd": {"strength": 1.0, "gamma": 0.99, "learning_rate": 1e-4, "network_settings.hidden_units": 128},
}
# Keys that ML-Agents accepts without a value.
WITHOUT_VALUE = (
    MEMORY,
    "reward_signals.curiosity.encoding_size",
    "reward_signals.gail.encoding_size",
    "reward_signals.rnd.encoding_size",
    "behavioral_cloning",
    "behavioral_cloning.num_epoch",
    "behavioral_cloning.batch_size",
    "self_play",
    "init_path",
    "framework",
    "env_settings.env_path",
    "env_settings.env_args",
    "torch_settings.device",
    "checkpoint_settings.initialize_from",
)
NO_SELF_PLAY = "there is no self-play against earlier weights; the teams of a behavior share the current network"
NO_RND_NETWORK = "nn.py defines the encoders; auxiliaries.rnd.units are network_settings.hidden_units"
NO_CURIOSITY_GAMMA = "the reward of curiosity is added to that of the scene, and has its discount"
NO_CURIOSITY_NETWORK = "nn.py defines the encoder of curiosity; its models have 256 units, as in ML-Agents"
NO_DEMONSTRATIONS = "learning from demonstrations is not supported"
NO_MODEL = "models of ML-Agents cannot be loaded"
COMMAND_LINE_NOTE = "it is an option of the command line: {}"


def _to_even_integer(value: int) -> int:
    if to_integer(value) <= 0 or value % 2:
        raise ValueError("it must be an even number above 0")
    return value


def _convert_strength(strength: float, config: TrainerConfig) -> float:
    if strength <= 0:
        raise UnsupportedValue("the scene's reward is the only one, and needs a strength above 0")
    return strength


def _convert_even_checkpoints(even: bool, config: TrainerConfig) -> Any:
    """Return the interval at which as many checkpoints are saved in a run as are kept."""
    return max(1, config.get("max_steps") // config.get("keep_checkpoints", 5)) if even else USE_DEFAULT


def _convert_num_envs(count: int, config: TrainerConfig) -> int:
    if count < 1:
        raise ValueError("it must be at least 1")
    if count > count_envs(config):
        raise UnsupportedValue(
            "there is no env_settings.env_path, and one editor: base_config.n_envs is 1; set it together with "
            "base_config.unity_args.build_path",
            used_value=1,
        )
    return count


def count_envs(config: TrainerConfig) -> int:
    """Return the number of environments: that of the file, or 1 without the path of a player."""
    return 1 if config.get("env_settings.env_path") is None else config.get("env_settings.num_envs")


def _convert_port(port: int, config: TrainerConfig) -> int:
    if config.get("env_settings.env_path") is None:
        raise UnsupportedValue(
            "it is the port of players, and there is no env_settings.env_path; the editor uses port 5004 (--port)"
        )
    return port


def _convert_seed(seed: int, config: TrainerConfig) -> int:
    if seed < 0:
        raise UnsupportedValue(
            "random seeds are not supported; base_config.seed is the same for each run unless --seed is given"
        )
    return seed


def _convert_device(name: str, config: TrainerConfig) -> str:
    try:
        return normalize_device(name)
    except ValueError as error:
        raise UnsupportedValue(f"base_config.device has no {name}; {error}") from error


def _convert_run_id(run_id: str, config: TrainerConfig) -> str:
    if not is_file_name(run_id) or "{" in run_id:
        raise UnsupportedValue("it cannot be the name of a folder; set base_config.name")
    return run_id


SIGNAL: Mapping[str, Converter] = {
    "gamma": to_number,
    "strength": to_number,
    "learning_rate": to_number,
    "encoding_size": to_integer,
}
CURIOSITY: Rules = {
    "reward_signals.curiosity.strength": MapsTo("auxiliaries.curiosity.strength", to_number),
    "reward_signals.curiosity.learning_rate": MapsTo("auxiliaries.curiosity.learning_rate", to_number),
    "reward_signals.curiosity.gamma": Unsupported(NO_CURIOSITY_GAMMA, converter=to_number),
    "reward_signals.curiosity.encoding_size": Unsupported(NO_CURIOSITY_NETWORK, converter=to_integer),
    "reward_signals.curiosity.network_settings": Unsupported(NO_CURIOSITY_NETWORK),
}
RND: Rules = {
    "reward_signals.rnd.strength": MapsTo("auxiliaries.rnd.strength", to_number),
    "reward_signals.rnd.gamma": MapsTo("auxiliaries.rnd.gamma", to_number),
    "reward_signals.rnd.learning_rate": MapsTo("auxiliaries.rnd.learning_rate", to_number),
    "reward_signals.rnd.network_settings.hidden_units": MapsTo(
        "auxiliaries.rnd.units", make_positive(to_integer), other_settings=("auxiliaries.rnd.outputs",)
    ),
    "reward_signals.rnd.encoding_size": Unsupported(NO_RND_NETWORK, converter=to_integer),
    "reward_signals.rnd.network_settings": Unsupported(NO_RND_NETWORK),
}

BEHAVIOR: Rules = {
    "trainer_type": Consumed(to_text),
    "network_settings.normalize": Consumed(to_bool),
    "network_settings.hidden_units": Consumed(make_positive(to_integer)),
    "network_settings.num_layers": Consumed(to_integer),
    "network_settings.vis_encode_type": Consumed(
        make_choice("simple", "nature_cnn", "resnet", "match3", "fully_connected")
    ),
    f"{MEMORY}.memory_size": Consumed(_to_even_integer),
    f"{MEMORY}.sequence_length": MapsTo("agent.sequence_length", make_positive(to_integer)),
    "network_settings.goal_conditioning_type": Unsupported(
        "goal signals are observations like the others; there are no hypernetworks",
        ("none",),
        make_choice("hyper", "none"),
    ),
    "network_settings.deterministic": Unsupported(
        "evaluation uses the most probable action, and so does --run with --disable-sample", supported_values=(False,)
    ),
    "reward_signals.extrinsic.gamma": MapsTo("agent.gamma", to_number),
    "reward_signals.extrinsic.strength": MapsTo("agent.reward_scale", to_number, _convert_strength),
    "reward_signals.extrinsic.network_settings": Unsupported("nn.py defines the critic's network"),
    **CURIOSITY,
    **RND,
    **make_unsupported_section(
        "reward_signals.gail",
        NO_DEMONSTRATIONS,
        {**SIGNAL, "demo_path": to_text, "use_actions": to_bool, "use_vail": to_bool},
        strict=True,
        required=("demo_path",),
    ),
    "reward_signals.gail.network_settings": Unsupported(NO_DEMONSTRATIONS),
    **make_unsupported_section(
        "behavioral_cloning",
        NO_DEMONSTRATIONS,
        {
            "demo_path": to_text,
            "steps": to_integer,
            "strength": to_number,
            "samples_per_update": to_integer,
            "num_epoch": to_integer,
            "batch_size": to_integer,
        },
        required=("demo_path",),
    ),
    **make_unsupported_section(
        "self_play",
        NO_SELF_PLAY,
        {
            "save_steps": to_integer,
            "team_change": to_integer,
            "swap_steps": to_integer,
            "window": to_integer,
            "play_against_latest_model_ratio": to_number,
            "initial_elo": to_number,
        },
    ),
    "max_steps": MapsTo("base_config.max_step", make_positive(to_integer), default=500_000),
    "summary_freq": MapsTo("base_config.log_every", make_positive(to_integer)),
    "checkpoint_interval": MapsTo("base_config.save_every", make_positive(to_integer)),
    "keep_checkpoints": MapsTo("base_config.keep_checkpoints", make_positive(to_integer)),
    "even_checkpoints": MapsTo("base_config.save_every", to_bool, _convert_even_checkpoints),
    "time_horizon": Unsupported(
        "it divides trajectories for on-policy learning; sequences of sequence_length steps replace it",
        converter=to_integer,
    ),
    "threaded": Unsupported("scenes always run during updates", supported_values=(True,)),
    "init_path": Unsupported(NO_MODEL),
    "framework": Unsupported("torch is the only framework, as in ML-Agents", supported_values=("pytorch",)),
}

RUN: Rules = {
    "env_settings.env_path": MapsTo("base_config.unity_args.build_path", to_text),
    "env_settings.env_args": MapsTo("base_config.unity_args.additional_args", to_text_list),
    "env_settings.base_port": MapsTo("base_config.unity_args.base_port", to_integer, _convert_port),
    "env_settings.num_envs": MapsTo("base_config.n_envs", to_integer, _convert_num_envs, default=1),
    "env_settings.num_areas": Unsupported(
        "areas are not replicated; build a scene that contains them", (1,), make_positive(to_integer)
    ),
    "env_settings.timeout_wait": MapsTo("base_config.unity_args.timeout_wait", to_number, mlagents_default=60),
    "env_settings.seed": MapsTo("base_config.seed", to_integer, _convert_seed),
    "env_settings.max_lifetime_restarts": MapsTo(
        "base_config.max_env_restarts",
        to_integer,
        lambda count, config: None if count < 0 else count,
        mlagents_default=10,
    ),
    "env_settings.restarts_rate_limit_n": Unsupported(
        "a player that failed starts again after 1, 2, 4 ... 60 seconds", converter=to_integer
    ),
    "env_settings.restarts_rate_limit_period_s": Unsupported("as for restarts_rate_limit_n", converter=to_integer),
    "engine_settings.width": MapsTo("base_config.unity_args.width", to_integer, mlagents_default=84),
    "engine_settings.height": MapsTo("base_config.unity_args.height", to_integer, mlagents_default=84),
    "engine_settings.quality_level": MapsTo("base_config.unity_args.quality_level", to_integer, mlagents_default=5),
    "engine_settings.time_scale": MapsTo("base_config.unity_args.time_scale", to_number, mlagents_default=20),
    "engine_settings.target_frame_rate": MapsTo(
        "base_config.unity_args.target_frame_rate", to_integer, mlagents_default=-1
    ),
    "engine_settings.capture_frame_rate": MapsTo(
        "base_config.unity_args.capture_frame_rate", to_integer, mlagents_default=60
    ),
    "engine_settings.no_graphics": MapsTo("base_config.unity_args.no_graphics", to_bool, mlagents_default=False),
    "engine_settings.no_graphics_monitor": Unsupported(
        "all players have the same graphics; --run --render shows one", supported_values=(False,)
    ),
    "torch_settings.device": MapsTo("base_config.device", to_text, _convert_device),
    "checkpoint_settings.run_id": MapsTo("base_config.name", to_text, _convert_run_id),
    "checkpoint_settings.results_dir": Unsupported("runs are written to ./runs", supported_values=("results",)),
    "checkpoint_settings.initialize_from": Unsupported(NO_MODEL),
    "checkpoint_settings.load_model": Unsupported(COMMAND_LINE_NOTE.format("--resume"), supported_values=(False,)),
    "checkpoint_settings.resume": Unsupported(COMMAND_LINE_NOTE.format("--resume"), supported_values=(False,)),
    "checkpoint_settings.force": Unsupported(COMMAND_LINE_NOTE.format("--force"), supported_values=(False,)),
    "checkpoint_settings.train_model": Unsupported("a command trains unless --run is given", supported_values=(False,)),
    "checkpoint_settings.inference": Unsupported(COMMAND_LINE_NOTE.format("--run"), supported_values=(False,)),
    "debug": Unsupported(COMMAND_LINE_NOTE.format("--debug"), supported_values=(False,)),
}
