"""Names of settings and flags in other programs and in earlier versions, with the setting to use instead."""

from __future__ import annotations

from algorithm.program import get_document

_OPTIONS = "not supported: an agent has one policy, without options"
_CLUSTER_PAGE = get_document("scaling")
_CONNECTION = f"--ray local, auto or HOST:PORT, which starts or joins a cluster of Ray ({_CLUSTER_PAGE})"
_SAMPLED = f"not needed: batches are sampled from the replay; in a cluster, Ray sends the rollouts ({_CLUSTER_PAGE})"
_NO_EVOLVER_ADDRESS = "not needed: --population starts all members, with --ray on other machines"
_AUTOMATIC_RESET = "not supported: every agent starts its next episode automatically; iterations only count episodes"
_GROUP_REWARD = "not supported: every agent learns separately, from its own reward and the reward of its group"
_RECORDS = "not supported: agents do not learn from recorded data"

# Keys: the last part of a setting, or its whole path if the last part is also a setting of this program; flags without
# dashes. Values: a setting of this program, or a text with spaces.

# BlueFisher/Advanced-Soft-Actor-Critic; docs/migration.md has all of them.
ADVANCED_SAC: dict[str, str] = {
    "write_summary_per_step": "base_config.log_every",
    "save_model_per_step": "base_config.save_every",
    "save_model_per_minute": "base_config.save_every",
    "reset_on_iteration": _AUTOMATIC_RESET,
    "max_step_per_iter": "base_config.max_step_each_iter",
    "n_agents": "base_config.n_envs",
    "scene": "base_config.env_name",
    "save_model_per_iter": "base_config.save_every",
    "base_config.port": "base_config.unity_args.base_port",
    "base_config.unity_args.port": "base_config.unity_args.base_port",
    "additional_args": "base_config.unity_args.additional_args",
    "force_vulkan": "base_config.unity_args.additional_args",
    "max_n_envs_per_process": "not supported: every player is a separate process",
    "group_aggregation": _GROUP_REWARD,
    "obs_preprocessor": "not supported: use base_config.env_wrappers or an env.py",
    "hit_reward": "not supported: goal.return is a mean over episodes",
    "offline_env_config": _RECORDS,
    "offline_loss": _RECORDS,
    "model_config": "nn_config, the keyword arguments of `blueprint` in nn.py",
    "inherited": "inherit, in the variant itself",
    "use_mongodb": "not supported: replay_config.memory_map keeps the replay buffer in files",
    "sac_config.learning_rate": "learning_rate_critic, learning_rate_policy and learning_rate_alpha",
    "_lambda": "sac_config.v_lambda",
    "use_priority": "replay_config.sampler",
    "use_add_with_td": "replay_config.initial_priorities: td_error (true) or null (false)",
    "use_replay_buffer": "not needed: SAC learns from replay only",
    "use_rnn": "memory=Gru(units) of the Blueprint in nn.py",
    "seq_encoder": "memory= of the Blueprint in nn.py: Gru, Lstm or Attention",
    "use_normalization": "Vector(normalize=True) in nn.py",
    "use_reward_normalization": "sac_config.reward_normalization",
    "d_policy_entropy_penalty": "not supported: sac_config.target_d_alpha and alpha_critic_scale weight entropy",
    "action_noise": "explorer: {action_noise: [min, max]}, a separate section",
    "siamese": "auxiliaries: {atc: {}} or auxiliaries: {byol: {}}",
    "siamese_use_q": "auxiliaries: {atc: {action_values: true}}, or the same for byol",
    "siamese_use_adaptive": "auxiliaries: {atc: {adaptive: true}}, or the same for byol",
    "use_prediction": "auxiliaries: {prediction: {}}",
    "transition_kl": "auxiliaries: {prediction: {transition_kl: ...}}",
    "use_extra_data": "not needed: auxiliaries: {prediction: {}} predicts from features of all observations",
    "curiosity": "auxiliaries: {curiosity: {model: ...}}, where the model is both, forward or inverse",
    "use_curiosity": "auxiliaries: {curiosity: {}}",
    "curiosity_strength": "auxiliaries: {curiosity: {strength: ...}}",
    "use_rnd": "auxiliaries: {rnd: {}} for a reward, and explorer: {novel_action: ...} for the most novel action",
    "rnd_n_sample": "explorer: {novel_action: n_samples}, with auxiliaries: {rnd: {input: observation_and_action}}",
    **dict.fromkeys(["oc_config", "oc"], _OPTIONS),
    **dict.fromkeys(["net_config", "learner_host", "learner_port", "replay_host", "replay_port"], _CONNECTION),
    **dict.fromkeys(
        ["update_policy_mode", "update_policy_variables_per_step", "update_sac_bak_per_step"], "cluster_config.max_lag"
    ),
    "max_actors_each_learner": "cluster_config.actors",
    **dict.fromkeys(["episode_queue_size", "batch_queue_size"], "cluster_config.rollouts_in_flight"),
    **dict.fromkeys(["episode_sender_process_num", "batch_generator_process_num"], _SAMPLED),
    "max_episode_length": "not needed: rollouts of rollout_length steps are stored, for episodes of any length",
    **dict.fromkeys(["noise", "noise_max", "noise_increasing_rate"], "explorer: {action_noise: [min, max]}"),
    **dict.fromkeys(["evolver_host", "evolver_port"], _NO_EVOLVER_ADDRESS),
    "o": "--set section.key=value",
    "override": "--set section.key=value",
    "envs": "base_config.n_envs",
    "u_editor": "--editor",
    "u_port": "--port",
    "build_port": "--port",
    "u_quality_level": "base_config.unity_args.quality_level",
    "u_timescale": "base_config.unity_args.time_scale",
    "run_a": "not needed: --run plays with every role of a run",
    "copy_model": "not supported: a new run starts with new weights; --resume continues a run",
    "hit": "not supported: goal.return is a mean over episodes",
}

# fedetask/ACER-torch; docs/migration.md
ACER_TORCH: dict[str, str] = {
    "env_name": "the folder's name, first on the command line; its config.yaml sets base_config.env_name",
    "exp_name": "base_config.name",
    "num_workers": (
        "--set base_config.runtime=WORKERS --set base_config.n_workers=N, or --agents N for environments in one process"
    ),
    "t_max": "base_config.max_step",
    "worker_steps": "acer_config.rollout_length",
    "buffer_len": "replay_config.capacity",
    "start_train_at": "acer_config.learning_starts",
    "discount": "acer_config.gamma",
    "c": "acer_config.trace_clip in the trace and acer_config.importance_clip in the policy gradient",
    "trust_region_threshold": "acer_config.trust_region_delta",
    "lr": "acer_config.learning_rate",
    "entropy_weight": "acer_config.entropy_coef",
    "no_lock": "--set base_config.runtime=WORKERS --set base_config.worker_lock=none",
    "no_lock_update": "--set base_config.runtime=WORKERS --set base_config.worker_lock=gradients",
}

# Unity ML-Agents; docs/unity.md
ML_AGENTS: dict[str, str] = {
    "run_id": "base_config.name",
    "num_envs": "base_config.n_envs",
    "max_steps": "base_config.max_step",
    "torch_device": "base_config.device",
    "inference": "--run",
    "deterministic": "--disable-sample",
    "summary_freq": "base_config.log_every",
    "checkpoint_interval": "base_config.save_every",
    "buffer_size": "replay_config.capacity",
    "time_horizon": "acer_config.rollout_length",
}

# Spellings of several libraries: Stable-Baselines3 and its zoo, CleanRL, RLlib.
OTHER_LIBRARIES: dict[str, str] = {
    "algo": "base_config.algorithm",
    **dict.fromkeys(
        ["env", "env_id"], "not needed: the environment comes first, for example gym/cartpole or CartPole-v1"
    ),
    **dict.fromkeys(["total_timesteps", "n_timesteps", "timesteps"], "base_config.max_step"),
    **dict.fromkeys(["wandb", "track", "use_wandb"], "--set base_config.tracker=wandb"),
    **dict.fromkeys(
        ["eval_freq", "evaluate_per_step", "evaluate_per_iter", "evaluate_per_iteration"], "base_config.evaluate_every"
    ),
    "save_freq": "base_config.save_every",
    "tensorboard_log": "not needed: every run writes its metrics for TensorBoard into its folder",
    "capture_video": "--run --video",
}

# Settings that were renamed in this program.
_RENAMED_IN_ACER = {
    "entropy": "entropy_coef",
    "critic_weight": "value_coef",
    "average_decay": "average_policy_decay",
    "decay": "trace_lambda",
    "retrace_clip": "trace_clip",
    "vtrace_clip": "rho_clip",
    "advantage_samples": "sdn_samples",
    "on_policy": "on_policy_updates",
    "squash": "tanh_squash",
}
_RENAMED_IN_BOTH = {
    "replay_start": "learning_starts",
    "collect_steps": "rollout_length",
    "trace_length": "sequence_length",
    "std_floor": "std_min",
    "normalize_returns": "reward_normalization (return_std or null)",
}
RENAMED: dict[str, str] = {
    "base_config.action_scale": "base_config.unbounded_action_limit",
    "base_config.act_on": "base_config.inference_device",
    "base_config.cuda_graphs": "not supported: no update is captured as CUDA graphs",
    "base_config.max_bad_updates": "base_config.max_nonfinite_updates",
    "replay_config.eta": "replay_config.max_error_weight",
    "replay_config.uniform_share": "replay_config.uniform_fraction",
    "goal.within": "goal.step_budget",
    **{f"sac_config.{old}": f"sac_config.{new}" for old, new in _RENAMED_IN_BOTH.items()},
    **{f"acer_config.{old}": f"acer_config.{new}" for old, new in (_RENAMED_IN_BOTH | _RENAMED_IN_ACER).items()},
}
# Values that were renamed in this program, by setting.
RENAMED_VALUES: dict[str, dict[str, str]] = {
    "acer_config.std": {"state": "state_dependent"},
}

FORMER_NAMES: dict[str, str] = {**RENAMED, **ACER_TORCH, **ADVANCED_SAC}  # of this program and its predecessors
NAMES_ELSEWHERE: dict[str, str] = {**OTHER_LIBRARIES, **ML_AGENTS, **FORMER_NAMES}
# Renamed settings by the last part of their path, as a flag would name them.
_RENAMED_BY_NAME: dict[str, str] = {path.rpartition(".")[2]: instead for path, instead in RENAMED.items()}

# Flags of other libraries with the names of settings here.
FLAGS_OF_LIBRARIES: dict[str, str] = {
    name: f"base_config.{name}" for name in ("algorithm", "n_envs", "evaluate_every", "save_every", "tracker")
}
# Flags of ACER-torch with the names of settings here.
FORMER_FLAGS: dict[str, str] = {
    "tau": "acer_config.average_policy_decay",
    **{
        name: f"acer_config.{name}"
        for name in (
            "batch_size",
            "replay_ratio",
            "trust_region",
            "reward_clip",
            "max_grad_norm",
            "learning_rate",
            "gamma",
        )
    },
}


# Words that other programs take as an argument, with what to use instead: of Advanced-SAC's main_ds.py, and commands.
_CLUSTER = f"the option --ray local, auto or HOST:PORT starts the learner and its actors ({_CLUSTER_PAGE})"
WORDS_ELSEWHERE: dict[str, str] = {
    **dict.fromkeys(["learner", "actor", "replay"], _CLUSTER),
    "evolver": f"a population of runs evolves without a process of its own ({get_document('scaling')})",
    "train": "leave it out, since an environment alone is trained",
    **dict.fromkeys(["play", "enjoy", "eval", "evaluate"], "the option --run plays with a trained run"),
}


def find_renamed_setting(path: str) -> str | None:
    """Return advice for the setting `path`, to follow its name; None if the name is unknown here, too."""
    name = path if path in NAMES_ELSEWHERE else path.rpartition(".")[2]
    return _format_advice(NAMES_ELSEWHERE.get(name), name in FORMER_NAMES)


def find_renamed_flag(name: str, flags: dict[str, str]) -> str | None:
    """Return advice for the flag `--name`, to follow its name; None if the name is unknown here, too.

    `flags` are the flags of this program by the setting that they set.
    """
    former = FORMER_NAMES | FORMER_FLAGS | _RENAMED_BY_NAME
    instead = former.get(name) or NAMES_ELSEWHERE.get(name) or FLAGS_OF_LIBRARIES.get(name)
    if instead and " " not in instead and not instead.startswith("-"):
        instead = flags.get(instead) or f"--set {instead}=..."
    return _format_advice(instead, name in former)


def find_renamed_value(path: str, value: object) -> str | None:
    """Return advice for a value of the setting `path`, to follow the value; None if it was never valid."""
    return _format_advice(RENAMED_VALUES.get(path, {}).get(str(value).casefold()), is_former=True)


def _format_advice(text: str | None, is_former: bool) -> str | None:
    """Return what to use instead of a name that this program or its predecessors had, or that others have."""
    if text is None or text.startswith("not "):
        return text
    return f"it is now {text}" if is_former else f"use {text}"
