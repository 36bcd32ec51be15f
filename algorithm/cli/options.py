"""The table of the options of the command line, which the parser, the help page and the reference are made from."""

from __future__ import annotations

from algorithm.cli.modes import (
    ALL_MODES,
    COMPARE,
    DEFAULT_SECONDS,
    DOCTOR,
    EXPORT,
    GALLERY,
    IMPORT,
    INIT,
    MODE,
    MODE_OPTIONS,
    PLAYING_MODES,
    REPORT,
    RESUME,
    RUN,
    SETTINGS_MODES,
    TRAIN,
    TRAINING_MODES,
    TUNE,
)
from algorithm.cli.option import FLAG_ARGS, INTEGER_ARGS, PAIR_ARGS, Option

MAX_REPEATS = 1000  # of --repeat

GROUPS = (MODE, "training", "playing and exporting", "comparing", "Unity", "output")
_, TRAINING, PLAYING, COMPARING, UNITY, OUTPUT = GROUPS

OPTIONS = (
    *MODE_OPTIONS,
    Option(
        group=TRAINING,
        spelling="--config",
        help="variant in the folder's config.yaml",
        modes=(TRAIN, DOCTOR, TUNE),
        short="-c",
        parser_args={"metavar": "VARIANT"},
    ),
    Option(
        group=TRAINING,
        spelling="--name",
        help="name of the run, {time} and <time> are the start time; --run, --resume, --export and --report use the "
        "latest run by default; with --tune, name of the study",
        modes=(TRAIN, RESUME, RUN, EXPORT, REPORT, TUNE),
        setting="base_config.name",
        short="-n",
    ),
    Option(
        group=TRAINING,
        spelling="--force",
        help="replace an existing run of this name; with --init and --import-mlagents, replace config.yaml and nn.py; "
        "with --tune, replace the variant; with --gallery, train again",
        modes=(TRAIN, INIT, IMPORT, TUNE, GALLERY),
        parser_args=FLAG_ARGS,
    ),
    Option(
        group=TRAINING,
        spelling="--save_as",
        help="variant that receives the best settings; tuned, or tuned_VARIANT, by default",
        modes=(TUNE,),
        parser_args={"metavar": "VARIANT"},
    ),
    Option(
        group=TRAINING,
        spelling="--seconds",
        help="time for which a run is trained at most, without the start of its process; with --gallery, each run "
        f"({DEFAULT_SECONDS} by default)",
        modes=(*TRAINING_MODES, GALLERY),
        parser_args=INTEGER_ARGS,
    ),
    Option(
        group=TRAINING,
        spelling="--repeat",
        help="train NAME-1 ... NAME-N with consecutive seeds, then print mean and std of the results",
        modes=(TRAIN,),
        parser_args=INTEGER_ARGS,
    ),
    Option(
        group=TRAINING,
        spelling="--population",
        help="train N members NAME-1 ... NAME-N at the same time, the worst of which copy the best",
        modes=(TRAIN,),
        setting="population_config.size",
        parser_args=INTEGER_ARGS,
    ),
    Option(
        group=TRAINING,
        spelling="--set",
        help="override settings, for example acer_config.gamma=0.995",
        modes=SETTINGS_MODES,
        parser_args=PAIR_ARGS,
    ),
    Option(
        group=TRAINING,
        spelling="--env_args",
        help="keyword arguments of the environment",
        modes=SETTINGS_MODES,
        setting="base_config.env_args",
        parser_args=PAIR_ARGS,
    ),
    Option(
        group=TRAINING,
        spelling="--agents",
        help="number of environments that run in parallel",
        modes=SETTINGS_MODES,
        setting="base_config.n_envs",
        parser_args=INTEGER_ARGS,
    ),
    Option(
        group=TRAINING,
        spelling="--max_step",
        help="number of steps, over all environments, after which training ends",
        modes=(*TRAINING_MODES, INIT, DOCTOR, TUNE),
        setting="base_config.max_step",
        parser_args=INTEGER_ARGS,
    ),
    Option(
        group=TRAINING,
        spelling="--max_iter",
        help="number of iterations after which training ends (in each, every agent ends an episode at least); with "
        "--run, episodes per environment",
        modes=SETTINGS_MODES,
        setting="base_config.max_iter",
        parser_args=INTEGER_ARGS,
    ),
    Option(
        group=TRAINING,
        spelling="--seed",
        help="seed of all random numbers",
        modes=SETTINGS_MODES,
        setting="base_config.seed",
        parser_args=INTEGER_ARGS,
    ),
    Option(
        group=TRAINING,
        spelling="--device",
        help="cpu, cuda (or gpu), cuda:1, mps, or auto",
        modes=SETTINGS_MODES,
        setting="base_config.device",
    ),
    Option(
        group=TRAINING,
        spelling="--ray",
        help="train with actors on Ray, or train the members of a population there: local (processes of this machine), "
        "auto (the cluster of this machine), or HOST:PORT of a cluster",
        modes=TRAINING_MODES,
        setting="cluster_config.address",
        implied={"base_config.runtime": "CLUSTER", "cluster_config.host": "ray"},
        parser_args={"metavar": "ADDRESS"},
    ),
    Option(
        group=TRAINING,
        spelling="--nn",
        help="file with the network, in the environment folder",
        modes=(TRAIN, RESUME, RUN, EXPORT, DOCTOR, TUNE),
        setting="base_config.nn",
        parser_args={"metavar": "FILE"},
    ),
    Option(
        group=PLAYING,
        spelling="--use_env_nn",
        help="use the network's file in the environment folder instead of the run's copy; also with --resume",
        modes=(RESUME, RUN, EXPORT),
        parser_args=FLAG_ARGS,
    ),
    Option(
        group=PLAYING,
        spelling="--ckpt",
        help="checkpoint to play with or to export: its number of steps, or its folder",
        modes=(RUN, EXPORT),
        parser_args={"metavar": "CHECKPOINT"},
    ),
    Option(
        group=PLAYING,
        spelling="--video",
        help="record the best, the median and the worst episode: mp4 and gif in the folder videos of the run",
        modes=PLAYING_MODES,
        parser_args=FLAG_ARGS,
    ),
    Option(group=PLAYING, spelling="--render", help="show the environment", modes=PLAYING_MODES, parser_args=FLAG_ARGS),
    Option(
        group=PLAYING,
        spelling="--disable_sample",
        help="play greedily (the most probable action) instead of as in evaluation",
        modes=PLAYING_MODES,
        parser_args=FLAG_ARGS,
    ),
    Option(
        group=PLAYING,
        spelling="--sample",
        help="play with sampled actions instead of as in evaluation",
        modes=PLAYING_MODES,
        parser_args=FLAG_ARGS,
    ),
    Option(
        group=COMPARING,
        spelling="--metric",
        help="column of metrics.csv to compare; eval/return if all runs have base_config.evaluate_every, otherwise "
        "rollout/return",
        modes=(COMPARE,),
        parser_args={"metavar": "METRIC"},
    ),
    Option(
        group=UNITY,
        spelling="--editor",
        help="use the Unity editor instead of a built player",
        modes=(TRAIN, RESUME, RUN, DOCTOR),
        setting="base_config.unity_args.build_path",
        parser_args={"action": "store_const", "const": "editor"},
    ),
    Option(
        group=UNITY,
        spelling="--port",
        help="port of the Unity editor, or of the first player",
        modes=(TRAIN, RESUME, RUN, DOCTOR),
        setting="base_config.unity_args.base_port",
        short="-p",
        parser_args=INTEGER_ARGS,
    ),
    Option(
        group=UNITY,
        spelling="--barracuda",
        help="export in ONNX opset 9, for packages 1.x and 2.x of ML-Agents",
        modes=(EXPORT,),
        parser_args=FLAG_ARGS,
    ),
    Option(
        group=OUTPUT,
        spelling="--logger_in_file",
        help="also write the output to log.txt in the run folder",
        modes=(TRAIN, RESUME, RUN),
        parser_args=FLAG_ARGS,
    ),
    Option(
        group=OUTPUT,
        spelling="--json",
        help="print the result as one line of JSON on standard output, and all else on standard error",
        modes=ALL_MODES,
        parser_args=FLAG_ARGS,
    ),
    Option(
        group=OUTPUT,
        spelling="--debug",
        help="show the traceback of an error",
        modes=ALL_MODES,
        parser_args=FLAG_ARGS,
    ),
)
FLAGS = {option.setting: option.spelling for option in OPTIONS if option.setting}
