"""What becomes of every key of ML-Agents 1.1: of a behavior, and of the run. Hyperparameters stand in trainers.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from algorithm.config.schema import device_name
from algorithm.mlagents.rules import (
    KEEP,
    Becomes,
    Kind,
    Lost,
    NotServed,
    Read,
    Rows,
    flag,
    number,
    one_of,
    positive,
    section_lost,
    text,
    texts,
    whole,
)
from algorithm.mlagents.trainer_config import Given
from algorithm.runs.env_folder import is_file_name

MEMORY = "network_settings.memory"
# Sections whose unknown keys ML-Agents ignores; it refuses them elsewhere.
IGNORING = ("network_settings.", "torch_settings.")
# Keys that ML-Agents takes without a value.
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
NO_CURIOSITY = "there is no curiosity; only the reward of the scene is learned from"
NO_RND = "there is no random network distillation; only the reward of the scene is learned from"
NO_DEMONSTRATIONS = "learning from demonstrations is not supported"
NO_MODEL = "a model of ML-Agents cannot be read here"
OF_COMMANDS = "the command line says so here: {}"


def _even(value: int) -> int:
    if whole(value) <= 0 or value % 2:
        raise ValueError("it must be an even number above 0")
    return value


def _scale(strength: float, given: Given) -> float:
    if strength <= 0:
        raise NotServed("the scene's reward is all that is learned from, and needs a strength above 0")
    return strength


def _spread(even: bool, given: Given) -> Any:
    """ML-Agents' even_checkpoints: as many over the run as are kept."""
    return max(1, given.value("max_steps") // given.value("keep_checkpoints", 5)) if even else KEEP


def _copies(count: int, given: Given) -> int:
    if count < 1 or count > 1 and given.value("env_settings.env_path") is None:
        raise ValueError("without env_settings.env_path it must be 1: there is one editor")
    return count


def _port(port: int, given: Given) -> int:
    if given.value("env_settings.env_path") is None:
        raise NotServed("it is of players, and there is no env_settings.env_path; the editor listens to 5004 (--port)")
    return port


def _seed(seed: int, given: Given) -> int:
    if seed < 0:
        raise NotServed("seeds are not drawn here; base_config.seed is the same for each run unless --seed is given")
    return seed


def _device(name: str, given: Given) -> str:
    try:
        return device_name(name)
    except ValueError as error:
        raise NotServed(f"base_config.device has no {name}; {error}") from error


def _name(run_id: str, given: Given) -> str:
    if not is_file_name(run_id) or "{" in run_id:
        raise NotServed("it is no name of a folder; base_config.name")
    return run_id


SIGNAL: Mapping[str, Kind] = {"gamma": number, "strength": number, "learning_rate": number, "encoding_size": whole}

BEHAVIOR: Rows = {
    "trainer_type": Read(text),
    "network_settings.normalize": Read(flag),
    "network_settings.hidden_units": Read(positive(whole)),
    "network_settings.num_layers": Read(whole),
    "network_settings.vis_encode_type": Read(one_of("simple", "nature_cnn", "resnet", "match3", "fully_connected")),
    f"{MEMORY}.memory_size": Read(_even),
    f"{MEMORY}.sequence_length": Becomes("agent.sequence_length", positive(whole)),
    "network_settings.goal_conditioning_type": Lost(
        "goal signals are observations like the others; there are no hypernetworks",
        ("none",),
        one_of("hyper", "none"),
    ),
    "network_settings.deterministic": Lost(
        "evaluation takes the most probable action, and --run does with --disable_sample", unless=(False,)
    ),
    "reward_signals.extrinsic.gamma": Becomes("agent.gamma", number),
    "reward_signals.extrinsic.strength": Becomes("agent.reward_scale", number, _scale),
    "reward_signals.extrinsic.network_settings": Lost("the critic's network is that of nn.py"),
    **section_lost("reward_signals.curiosity", NO_CURIOSITY, strict=True, **SIGNAL),
    "reward_signals.curiosity.network_settings": Lost(NO_CURIOSITY),
    **section_lost("reward_signals.rnd", NO_RND, strict=True, **SIGNAL),
    "reward_signals.rnd.network_settings": Lost(NO_RND),
    **section_lost(
        "reward_signals.gail",
        NO_DEMONSTRATIONS,
        strict=True,
        required=("demo_path",),
        **SIGNAL,
        demo_path=text,
        use_actions=flag,
        use_vail=flag,
    ),
    "reward_signals.gail.network_settings": Lost(NO_DEMONSTRATIONS),
    **section_lost(
        "behavioral_cloning",
        NO_DEMONSTRATIONS,
        required=("demo_path",),
        demo_path=text,
        steps=whole,
        strength=number,
        samples_per_update=whole,
        num_epoch=whole,
        batch_size=whole,
    ),
    **section_lost(
        "self_play",
        NO_SELF_PLAY,
        save_steps=whole,
        team_change=whole,
        swap_steps=whole,
        window=whole,
        play_against_latest_model_ratio=number,
        initial_elo=number,
    ),
    "max_steps": Becomes("base_config.max_step", positive(whole), default=500_000),
    "summary_freq": Becomes("base_config.log_every", positive(whole)),
    "checkpoint_interval": Becomes("base_config.save_every", positive(whole)),
    "keep_checkpoints": Becomes("base_config.keep_checkpoints", positive(whole)),
    "even_checkpoints": Becomes("base_config.save_every", flag, _spread),
    "time_horizon": Lost(
        "it cuts trajectories for on-policy learning; sequences of sequence_length steps replace it", kind=whole
    ),
    "threaded": Lost("scenes go on while there is learning, always", unless=(True,)),
    "init_path": Lost(NO_MODEL),
    "framework": Lost("there is torch alone, as in ML-Agents", unless=("pytorch",)),
}

RUN: Rows = {
    "env_settings.env_path": Becomes("base_config.unity_args.build_path", text),
    "env_settings.env_args": Becomes("base_config.unity_args.additional_args", texts),
    "env_settings.base_port": Becomes("base_config.unity_args.base_port", whole, _port),
    "env_settings.num_envs": Becomes("base_config.n_envs", whole, _copies, default=1),
    "env_settings.num_areas": Lost("areas are not replicated; build a scene that has them", (1,), positive(whole)),
    "env_settings.timeout_wait": Becomes("base_config.unity_args.timeout_wait", number, theirs=60),
    "env_settings.seed": Becomes("base_config.seed", whole, _seed),
    "env_settings.max_lifetime_restarts": Becomes(
        "base_config.max_env_restarts", whole, lambda count, given: None if count < 0 else count, theirs=10
    ),
    "env_settings.restarts_rate_limit_n": Lost(
        "a player that broke waits 1, 2, 4 ... 60 seconds for its next start", kind=whole
    ),
    "env_settings.restarts_rate_limit_period_s": Lost("as for restarts_rate_limit_n", kind=whole),
    "engine_settings.width": Becomes("base_config.unity_args.width", whole, theirs=84),
    "engine_settings.height": Becomes("base_config.unity_args.height", whole, theirs=84),
    "engine_settings.quality_level": Becomes("base_config.unity_args.quality_level", whole, theirs=5),
    "engine_settings.time_scale": Becomes("base_config.unity_args.time_scale", number, theirs=20),
    "engine_settings.target_frame_rate": Becomes("base_config.unity_args.target_frame_rate", whole, theirs=-1),
    "engine_settings.capture_frame_rate": Becomes("base_config.unity_args.capture_frame_rate", whole, theirs=60),
    "engine_settings.no_graphics": Becomes("base_config.unity_args.no_graphics", flag, theirs=False),
    "engine_settings.no_graphics_monitor": Lost("players are all alike; --run --render shows one", unless=(False,)),
    "torch_settings.device": Becomes("base_config.device", text, _device),
    "checkpoint_settings.run_id": Becomes("base_config.name", text, _name),
    "checkpoint_settings.results_dir": Lost("runs go to ./runs", unless=("results",)),
    "checkpoint_settings.initialize_from": Lost(NO_MODEL),
    "checkpoint_settings.load_model": Lost(OF_COMMANDS.format("--resume"), unless=(False,)),
    "checkpoint_settings.resume": Lost(OF_COMMANDS.format("--resume"), unless=(False,)),
    "checkpoint_settings.force": Lost(OF_COMMANDS.format("--force"), unless=(False,)),
    "checkpoint_settings.train_model": Lost("a command trains unless it says --run", unless=(False,)),
    "checkpoint_settings.inference": Lost(OF_COMMANDS.format("--run"), unless=(False,)),
    "debug": Lost(OF_COMMANDS.format("--debug"), unless=(False,)),
}
