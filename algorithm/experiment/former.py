"""Names that settings and flags had in programs this workflow comes from, and what serves instead here."""

from __future__ import annotations

# Settings are named by their last part, flags without dashes. What holds no blank is a setting of ours.
FORMER: dict[str, str] = {
    # BlueFisher/Advanced-Soft-Actor-Critic
    "write_summary_per_step": "base_config.log_every",
    "save_model_per_step": "base_config.save_every",
    "save_model_per_minute": "base_config.save_every",
    "evaluate_per_step": "base_config.evaluate_every",
    "evaluate_per_iter": "base_config.evaluate_every",
    "evaluate_per_iteration": "base_config.evaluate_every",
    "reset_on_iteration": "gone: every lane starts its next episode by itself; an iteration only counts them",
    "max_step_per_iter": "base_config.max_step_each_iter",
    "n_agents": "base_config.n_envs",
    "scene": "base_config.env_name",
    "use_priority": "replay_config.sampler",
    "inherited": "inherit, in the variant itself",
    "o": "--set section.key=value",
    "envs": "base_config.n_envs",
    "u_editor": "--editor",
    # fedetask/ACER-torch
    "env_name": "the folder's name, first on the command line; its config.yaml sets base_config.env_name",
    "exp_name": "base_config.name",
    "num_workers": "base_config.n_envs",
    "t_max": "base_config.max_step",
    "worker_steps": "acer_config.collect_steps",
    "buffer_len": "replay_config.capacity",
    "start_train_at": "acer_config.replay_start",
    "discount": "acer_config.gamma",
    "c": "acer_config.retrace_clip in the trace and acer_config.importance_clip in the policy gradient",
    "trust_region_threshold": "acer_config.trust_region_delta",
    "lr": "acer_config.learning_rate",
    "entropy_weight": "acer_config.entropy",
    "no_lock": "gone: one process learns, there is nothing to lock",
    "no_lock_update": "gone: one process learns, there is nothing to lock",
    # Unity ML-Agents
    "run_id": "base_config.name",
    "num_envs": "base_config.n_envs",
    "max_steps": "base_config.max_step",
    "torch_device": "base_config.device",
    "inference": "--run",
    "deterministic": "--disable_sample",
    "summary_freq": "base_config.log_every",
    "checkpoint_interval": "base_config.save_every",
    "buffer_size": "replay_config.capacity",
    "time_horizon": "acer_config.collect_steps",
}


def former_setting(path: str) -> str | None:
    """What to write instead of the setting `path`; None where the name is not an old one."""
    return _instead(FORMER.get(path.rpartition(".")[2]))


def former_flag(name: str, flags: dict[str, str]) -> str | None:
    """What to write instead of the flag `--name`; `flags` are ours by the setting they set."""
    # A setting keeps its name where ACER-torch had a flag of that name.
    instead = FORMER.get(name) or (f"acer_config.{name}" if name in SAME else None)
    if instead is None or " " in instead or instead.startswith("-"):
        return _instead(instead)
    return f"it is now {flags.get(instead) or f'--set {instead}=...'}"


SAME = (
    "batch_size",
    "replay_ratio",
    "trust_region",
    "reward_clip",
    "max_grad_norm",
    "learning_rate",
    "gamma",
    "entropy",
)


def _instead(text: str | None) -> str | None:
    return text if text is None or text.startswith("gone") else f"it is now {text}"
