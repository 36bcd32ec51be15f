"""The modes of the command line: training, and a mode for each option that does something else."""

from __future__ import annotations

from algorithm.cli.option import FLAG_ARGS, INTEGER_ARGS, Option

DEFAULT_TRIALS = 20  # of --tune
DEFAULT_SECONDS = 300  # of --gallery
MODE = "modes"  # group of the options

TRAIN, RESUME, RUN, EXPORT = "training", "--resume", "--run", "--export"
LIST, INIT, IMPORT, DOCTOR, TUNE = "--list", "--init", "--import_mlagents", "--doctor", "--tune"
REPORT, COMPARE, GALLERY = "--report", "--compare", "--gallery"
MODES = (RESUME, RUN, EXPORT, REPORT, COMPARE, GALLERY, LIST, INIT, IMPORT, DOCTOR, TUNE)
TRAINING_MODES, PLAYING_MODES, ALL_MODES = (TRAIN, RESUME), (RUN,), (TRAIN, *MODES)
SETTINGS_MODES = (TRAIN, RESUME, RUN, INIT, DOCTOR, TUNE)  # the modes that need settings

MODE_OPTIONS = (
    Option(
        group=MODE,
        spelling="--run",
        help="play the episodes of an evaluation with a trained run, greedy or sampled as in its evaluation",
        modes=PLAYING_MODES,
        parser_args=FLAG_ARGS,
    ),
    Option(group=MODE, spelling="--resume", help="continue a run", modes=(RESUME,), parser_args=FLAG_ARGS),
    Option(
        group=MODE,
        spelling="--export",
        help="write a trained run as ONNX for Unity, one file for each kind of agent",
        modes=(EXPORT,),
        parser_args=FLAG_ARGS,
    ),
    Option(
        group=MODE,
        spelling=REPORT,
        help="write report.html and the model card README.md into the folder of a run",
        modes=(REPORT,),
        parser_args=FLAG_ARGS,
    ),
    Option(
        group=MODE,
        spelling=GALLERY,
        help="train every environment folder, or those of a group, each for --seconds at most, and write a page with "
        "curves, videos and figures into FOLDER",
        modes=(GALLERY,),
        parser_args={"metavar": "FOLDER"},
    ),
    Option(
        group=MODE,
        spelling="--list",
        help="list all runs, or the runs of one environment, with their results",
        modes=(LIST,),
        parser_args=FLAG_ARGS,
    ),
    Option(
        group=MODE,
        spelling=COMPARE,
        help="compare runs, grouped by their settings: curves, returns, goals, with intervals over seeds; a folder of "
        "runs, or a pattern, is all of its runs",
        modes=(COMPARE,),
        parser_args={"nargs": "+", "action": "extend", "metavar": "RUN_FOLDER"},
    ),
    Option(
        group=MODE,
        spelling="--init",
        help="write a commented folder envs/GROUP/NAME for Gymnasium's NAME, or for any --set base_config.env_name=ID",
        modes=(INIT,),
        parser_args={"metavar": "GROUP/NAME"},
    ),
    Option(
        group=MODE,
        spelling=IMPORT,
        help="write a folder envs/unity/NAME for each behavior of a trainer configuration of Unity ML-Agents",
        modes=(IMPORT,),
        parser_args={"metavar": "CONFIG.yaml"},
    ),
    Option(
        group=MODE,
        spelling="--doctor",
        help="check this machine, or the requirements of an environment folder, with advice for each problem",
        modes=(DOCTOR,),
        parser_args=FLAG_ARGS,
    ),
    Option(
        group=MODE,
        spelling=TUNE,
        help="search the space tune.space of the folder's config.yaml until the study has N trials "
        f"({DEFAULT_TRIALS} by default), and write the best settings as a variant; further processes join the study",
        modes=(TUNE,),
        parser_args={**INTEGER_ARGS, "nargs": "?", "const": DEFAULT_TRIALS},
    ),
)
