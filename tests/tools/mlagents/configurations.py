"""Trainer configurations with the keys of ML-Agents' example scenes, and what is expected of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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


EXAMPLES_TEXT = """
3DBall:
  text: |
    behaviors:
      3DBall:
        trainer_type: ppo
        hyperparameters:
          {batch_size: 96, buffer_size: 9600, learning_rate: 0.00025, beta: 0.002, epsilon: 0.2, lambd: 0.98,
           num_epoch: 4, learning_rate_schedule: constant}
        network_settings: {normalize: true, hidden_units: 64, num_layers: 2, vis_encode_type: simple}
        reward_signals: {extrinsic: {gamma: 0.98, strength: 1.0}}
        keep_checkpoints: 7
        max_steps: 4.0e5
        time_horizon: 900
        summary_freq: 10000
  settings:
    3DBall:
      base_config:
        {max_step: 400000, log_every: 10000, keep_checkpoints: 7, n_envs: 1, unity_args: {build_path: editor}}
      ppo_config:
        {learning_rate: 0.00025, learning_rate_schedule: constant, gamma: 0.98, gae_lambda: 0.98, rollout_length: 900,
         reward_normalization: return_std, minibatches: 100, epochs: 4, clip_ratio: 0.2, value_clip: 0.2,
         clip_ratio_final_fraction: 0.5, entropy_coef: 0.002, entropy_coef_final_fraction: 0.005}
  nn: {3DBall: 'blueprint(units: int = 64, layers: int = 2)'}
3DBall_randomize:
  text: |
    behaviors:
      3DBall:
        trainer_type: ppo
        hyperparameters: {batch_size: 64, buffer_size: 12000, learning_rate: 0.0003}
        threaded: false
    environment_parameters:
      mass: {sampler_type: uniform, sampler_parameters: {min_value: 0.4, max_value: 9}}
      gravity: {sampler_type: gaussian, sampler_parameters: {mean: 9.5, st_dev: 0.4, seed: 3}}
      scale: {sampler_type: multirangeuniform, sampler_parameters: {intervals: [[0.5, 1], [2, 3]]}}
      drag: {sampler_type: constant, sampler_parameters: {value: 0.1}}
      friction: 2
  settings:
    3DBall:
      base_config: {max_step: 500000}
      ppo_config: {learning_rate_schedule: linear}
      reset_config:
        mass: {sampler_type: uniform, sampler_parameters: {min_value: 0.4, max_value: 9}}
        gravity: {sampler_type: gaussian, sampler_parameters: {mean: 9.5, st_dev: 0.4}}
        scale: {sampler_type: multirangeuniform, sampler_parameters: {intervals: [[0.5, 1], [2, 3]]}}
        drag: 0.1
        friction: 2
  keys: [behaviors.3DBall.threaded, environment_parameters.gravity.sampler_parameters.seed]
  nn: {3DBall: 'blueprint(units: int = 128, layers: int = 2)'}
Walker:
  text: |
    behaviors:
      Walker:
        trainer_type: ppo
        hyperparameters: {beta_schedule: linear, epsilon_schedule: linear, shared_critic: true}
        network_settings: {deterministic: false}
        reward_signals: {extrinsic: {gamma: 0.995, strength: 0.5}}
        checkpoint_interval: 250000
        even_checkpoints: false
        max_steps: 30000000
        summary_freq: 30000
        threaded: true
        self_play: null
    env_settings:
      {env_path: builds/Walker, num_envs: 4, base_port: 5100, seed: 12, env_args: [-quiet, 3], timeout_wait: 90}
    engine_settings:
      {time_scale: 50, width: 100, height: 60, quality_level: 3, no_graphics: false, target_frame_rate: 30}
    torch_settings: {device: cuda}
    checkpoint_settings: {run_id: first, results_dir: results, resume: false, force: true}
    debug: false
  settings:
    Walker:
      base_config:
        {n_envs: 4, seed: 12, name: first, device: cuda, save_every: 250000, unity_args:
         {build_path: builds/Walker, base_port: 5100, additional_args: [-quiet, "3"], timeout_wait: 90, time_scale: 50,
          width: 100, height: 60, quality_level: 3, target_frame_rate: 30, no_graphics: false}}
      ppo_config: {reward_scale: 0.5, gamma: 0.995}
  keys: [checkpoint_settings.force]
  nn: {Walker: body=hidden)}
WallJump:
  text: |
    default_settings:
      trainer_type: ppo
      hyperparameters: {learning_rate: 0.0002, num_epoch: 3}
      network_settings: {hidden_units: 256, memory: {memory_size: 64}}
      max_steps: 1.0e7
    behaviors:
      BigWallJump:
        network_settings: {num_layers: 3}
        max_steps: 2.0e7
      SmallWallJump:
        hyperparameters: {learning_rate: 0.0001}
        network_settings: {memory: null}
    environment_parameters:
      big_wall_height:
        curriculum:
          - name: Low
            completion_criteria:
              {measure: reward, behavior: BigWallJump, signal_smoothing: true, min_lesson_length: 80, threshold: 0.3}
            value: {sampler_type: uniform, sampler_parameters: {min_value: 0.0, max_value: 3.0}}
          - name: Middle
            completion_criteria: {behavior: BigWallJump, signal_smoothing: false, threshold: 0.6, require_reset: true}
            value: 5
          - name: High
            completion_criteria: {measure: reward, behavior: BigWallJump, threshold: 1}
            value: 8.0
      small_wall_height:
        curriculum:
          - name: A
            value: 1.5
            completion_criteria:
              {measure: progress, behavior: SmallWallJump, signal_smoothing: true, min_lesson_length: 100,
               threshold: 0.1}
          - {name: B, value: 2.5, completion_criteria: {measure: progress, behavior: SmallWallJump, threshold: 0.4}}
          - {name: C, value: 4.0}
  settings:
    BigWallJump:
      base_config: {max_step: 20000000}
      ppo_config: {learning_rate: 0.0002, rollout_length: 64, minibatches: 1}
      reset_config:
        big_wall_height:
          curriculum:
            - name: Low
              value: {sampler_type: uniform, sampler_parameters: {min_value: 0, max_value: 3}}
              completion_criteria: {measure: reward, behavior: BigWallJump, min_lesson_length: 80, threshold: 0.3}
            - name: Middle
              value: 5
              completion_criteria: {measure: reward, behavior: BigWallJump, min_lesson_length: 1, threshold: 0.6}
            - {name: High, value: 8.0}
        small_wall_height:
          curriculum:
            - name: A
              value: 1.5
              completion_criteria: {measure: progress, behavior: SmallWallJump, min_lesson_length: 100, threshold: 0.1}
            - name: B
              value: 2.5
              completion_criteria: {measure: progress, behavior: SmallWallJump, min_lesson_length: 1, threshold: 0.4}
            - {name: C, value: 4.0}
    SmallWallJump:
      base_config: {max_step: 10000000}
      ppo_config: {learning_rate: 0.0001, minibatches: 10}
  below: environment_parameters.big_wall_height.curriculum
  keys: ['[0].completion_criteria.signal_smoothing', '[1].completion_criteria.require_reset', '[2].completion_criteria']
  nn: {BigWallJump: 'body=hidden, memory=Lstm(32)', SmallWallJump: 'policy=hidden, critic=hidden'}
Hallway:
  text: |
    behaviors:
      Hallway:
        trainer_type: ppo
        hyperparameters: {learning_rate: 0.0003, beta: 0.01}
        network_settings:
          normalize: false
          num_layers: 2
          memory: {sequence_length: 48, memory_size: 128}
          goal_conditioning_type: hyper
        reward_signals:
          extrinsic: {gamma: 0.99, strength: 1.0}
          curiosity: {gamma: 0.99, strength: 0.02, network_settings: {hidden_units: 256}, learning_rate: 0.0003}
  settings:
    Hallway:
      ppo_config: {minibatches: 1, entropy_coef: 0.01}
      auxiliaries: {curiosity: {strength: 0.02, learning_rate: 0.0003}}
  below: behaviors.Hallway.
  keys: [network_settings.goal_conditioning_type, network_settings.memory.sequence_length,
         reward_signals.curiosity.gamma, reward_signals.curiosity.network_settings.hidden_units]
  nn: {Hallway: 'memory=Lstm(64)'}
GridWorld:
  text: |
    behaviors:
      GridWorld:
        trainer_type: ppo
        network_settings: {vis_encode_type: nature_cnn, hidden_units: 100, num_layers: 1, goal_conditioning_type: none}
        max_steps: 500000
        even_checkpoints: true
        keep_checkpoints: 4
        init_path: results/old/GridWorld/checkpoint.pt
    engine_settings: {no_graphics: false}
  settings:
    GridWorld: {base_config: {unity_args: {no_graphics: false}, save_every: 125000, keep_checkpoints: 4}}
  keys: [behaviors.GridWorld.init_path]
  nn: {GridWorld: 'image = NatureCnn(units)'}
SoccerTwos:
  text: |
    behaviors:
      SoccerTwos:
        trainer_type: poca
        hyperparameters: {batch_size: 2048, buffer_size: 20480, beta: 0.005, learning_rate_schedule: constant}
        self_play: {save_steps: 50000, team_change: 200000, swap_steps: 2000, window: 10, initial_elo: 1200.0}
  settings:
    SoccerTwos: {ppo_config: {learning_rate_schedule: constant, entropy_coef: 0.005}}
  below: behaviors.SoccerTwos.self_play.
  keys: [initial_elo, save_steps, swap_steps, team_change, window]
Pyramids:
  text: |
    behaviors:
      Pyramids:
        trainer_type: ppo
        network_settings: {hidden_units: 512, vis_encode_type: resnet}
        reward_signals:
          rnd: {gamma: 0.99, strength: 0.01, learning_rate: 0.0001}
          gail: {strength: 0.01, demo_path: Demos/ExpertPyramid.demo, use_actions: false}
        behavioral_cloning: {demo_path: Demos/ExpertPyramid.demo, strength: 0.5, steps: 150000}
        time_horizon: 128
  settings:
    Pyramids:
      ppo_config: {gamma: 0.99, reward_scale: 1.0, rollout_length: 128}
      auxiliaries: {rnd: {strength: 0.01, gamma: 0.99, learning_rate: 0.0001, units: 128, outputs: 128}}
  below: behaviors.Pyramids.
  keys: [reward_signals, reward_signals.gail.strength, reward_signals.gail.demo_path, reward_signals.gail.use_actions,
         behavioral_cloning.demo_path, behavioral_cloning.strength, behavioral_cloning.steps]
  nn: {Pyramids: 'image = ImpalaResNet(units=units)'}
Crawler:
  text: |
    behaviors:
      Crawler:
        trainer_type: sac
        hyperparameters:
          {learning_rate: 0.0003, learning_rate_schedule: constant, batch_size: 256, buffer_size: 500000, tau: 0.005,
           buffer_init_steps: 2000, steps_per_update: 20.0, save_replay_buffer: false, init_entcoef: 1.0,
           reward_signal_steps_per_update: 20.0}
        network_settings: {normalize: true, hidden_units: 512, num_layers: 3}
        max_steps: 5000000
  settings:
    Crawler:
      base_config: {algorithm: SAC}
      sac_config:
        {batch_size: 256, sequence_length: 1, burn_in_step: 0, learning_starts: 2000, replay_ratio: 1.0,
         target_d_alpha: 0.2, learning_rate_schedule: constant, init_log_alpha: 0.0, reward_normalization: null}
      replay_config: {capacity: 500000}
  below: behaviors.Crawler.hyperparameters.
  keys: [reward_signal_steps_per_update, save_replay_buffer, steps_per_update]
FoodCollector:
  text: |
    behaviors:
      GridFoodCollector:
        trainer_type: sac
        hyperparameters: {batch_size: 256, steps_per_update: 2, buffer_init_steps: 0}
        network_settings: {vis_encode_type: simple, hidden_units: 256, num_layers: 1, memory: {sequence_length: 32}}
        reward_signals: {extrinsic: {gamma: 0.99, strength: 1.0, network_settings: {hidden_units: 64}}}
    env_settings:
      {env_path: builds/Food, num_envs: 3, num_areas: 4, max_lifetime_restarts: -1, restarts_rate_limit_n: 2}
    torch_settings: {device: xpu}
  settings:
    GridFoodCollector:
      sac_config:
        batch_size: 8  # sequences of 32 rows
        sequence_length: 32
        burn_in_step: 16
        replay_ratio: 1.5  # 1 row of 3 environments, an update for 2
        learning_starts: 256  # a batch, in rows
        learning_rate_schedule: constant
        learning_rate_critic: 0.0003
      base_config: {max_env_restarts: null, device: auto}
  keys: [behaviors.GridFoodCollector.reward_signals.extrinsic.network_settings.hidden_units, env_settings.num_areas,
         env_settings.restarts_rate_limit_n, torch_settings.device]
  nn: {GridFoodCollector: 'memory=Lstm(64)'}
Match3:
  text: |
    behaviors:
      Match3VectorObs:
        trainer_type: ppo
        network_settings: {vis_encode_type: match3, hidden_units: 64, num_layer: 3}
        hyperparameters: {batch_size: 64}
      Match3VisualObs:
        trainer_type: ppo
        network_settings: {vis_encode_type: fully_connected, num_layers: 0}
    checkpoint_settings: {run_id: "a/b", initialize_from: older}
  settings:
    Match3VectorObs: {base_config: {name: '{time}'}}
    Match3VisualObs: {base_config: {max_step: 500000}}
  # ML-Agents ignores num_layer.
  keys: [behaviors.Match3VectorObs.network_settings.num_layer, checkpoint_settings.initialize_from,
         checkpoint_settings.run_id]
  nn: {Match3VectorObs: 'Conv((35, 3, 1), (144, 3, 1), units=units)', Match3VisualObs: 'layers: int = 1'}
"""
EXAMPLES = {name: Example(**example) for name, example in yaml.safe_load(EXAMPLES_TEXT).items()}

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
