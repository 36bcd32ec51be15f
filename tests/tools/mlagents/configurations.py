"""Trainer configurations with the keys of ML-Agents' example scenes, and what is expected of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True)
class Example:
    """A trainer configuration, with the settings expected in some folders, and all keys without a counterpart.

    `below` is the start of these keys, and `nn` is what nn.py must contain.
    """

    text: str
    settings: Mapping[str, Any]
    keys: Sequence[str] = ()
    below: str = ""
    nn: Mapping[str, str] = field(default_factory=dict)

    @property
    def lost(self) -> set[str]:
        return {f"{self.below}{key}" for key in self.keys}


EXAMPLES_FILE = Path(__file__).with_name("examples.yaml")
EXAMPLES = {name: Example(**example) for name, example in yaml.safe_load(EXAMPLES_FILE.read_text("utf-8")).items()}

# Every key that ML-Agents 1.1 has, with a value that is not its default: of a behavior, of trainers, of a run.
OF_ANY: dict[str, Any] = yaml.safe_load("""
network_settings: &network
  {normalize: true, hidden_units: 77, num_layers: 5, vis_encode_type: resnet, goal_conditioning_type: hyper,
   memory: {sequence_length: 40, memory_size: 90}, deterministic: true}
reward_signals:
  extrinsic: {gamma: 0.9, strength: 0.3, network_settings: *network}
  curiosity: &intrinsic {gamma: 0.9, strength: 0.3, network_settings: *network, learning_rate: 0.1, encoding_size: 9}
  rnd: *intrinsic
  gail: {<<: *intrinsic, use_actions: true, use_vail: true, demo_path: a.demo}
init_path: a.pt
keep_checkpoints: 9
even_checkpoints: true
checkpoint_interval: 777
max_steps: 7777
time_horizon: 77
summary_freq: 777
threaded: false
self_play:
  {save_steps: 7, team_change: 7, swap_steps: 7, window: 7, play_against_latest_model_ratio: 0.7, initial_elo: 7.0}
behavioral_cloning: {demo_path: a.demo, steps: 7, strength: 0.7, samples_per_update: 7, num_epoch: 7, batch_size: 7}
""")
HYPERPARAMETERS: dict[str, dict[str, Any]] = yaml.safe_load("""
poca: &poca
  {batch_size: 70, buffer_size: 700, learning_rate: 0.007, learning_rate_schedule: constant, num_epoch: 7, beta: 0.07,
   beta_schedule: constant, epsilon: 0.7, epsilon_schedule: constant, lambd: 0.7}
ppo: {<<: *poca, shared_critic: true}
sac:
  {batch_size: 700, buffer_size: 70000, learning_rate: 0.007, learning_rate_schedule: linear, buffer_init_steps: 7000,
   tau: 0.07, steps_per_update: 0.7, save_replay_buffer: false, init_entcoef: 0.7, reward_signal_steps_per_update: 7}
""")
OF_RUN: dict[str, Any] = yaml.safe_load("""
env_settings:
  {env_path: builds/A, env_args: [-a], base_port: 7777, num_envs: 7, num_areas: 7, timeout_wait: 77, seed: 7,
   max_lifetime_restarts: 7, restarts_rate_limit_n: 7, restarts_rate_limit_period_s: 7}
engine_settings:
  {width: 77, height: 77, quality_level: 4, time_scale: 7, target_frame_rate: 7, capture_frame_rate: 7,
   no_graphics: false, no_graphics_monitor: true}
torch_settings: {device: "cuda:0"}
checkpoint_settings:
  {run_id: seven, initialize_from: six, load_model: true, resume: true, force: true, train_model: true,
   inference: true, results_dir: elsewhere}
debug: true
""")
