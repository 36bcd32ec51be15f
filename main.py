"""Train an agent in an environment's folder, or play with a trained one."""

from __future__ import annotations

import os

for _library in ("OMP", "OPENBLAS", "MKL"):  # before numpy is imported, which reads them once
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")

import argparse  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402

EPISODES = 20  # that --run plays


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="main.py", description=__doc__)
    parser.add_argument("env", help="environment folder below envs/, for example gym/cartpole")
    parser.add_argument("-n", "--name", help="name of the run; {time} and <time> become the start time")
    parser.add_argument("-c", "--config", default="default", help="variant in the folder's config.yaml")
    parser.add_argument(
        "--run", action="store_true", help=f"play {EPISODES} episodes with a trained run (the latest without -n)"
    )
    parser.add_argument("--render", action="store_true", help="with --run: show the environment")
    parser.add_argument("--disable_sample", "--disable-sample", action="store_true", help="with --run: act greedily")
    parser.add_argument("--resume", action="store_true", help="go on with a run (the latest without -n)")
    parser.add_argument("--seed", type=int, help="short for --set base_config.seed=...")
    parser.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="section.key=value", help="override settings"
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run a command line. Status: 0 done, 1 failed, 2 for the user to mend, 3 no environment, 130 Ctrl-C."""
    options = parse(arguments)
    from algorithm.adapters.adapter import EnvironmentFailed, UnsupportedEnvironment
    from algorithm.experiment.errors import UserError
    from algorithm.loop.checkpoint import CheckpointError

    try:
        return _play(options) if options.run else _train(options)
    except (UserError, UnsupportedEnvironment) as error:
        return _fail(error, 2)
    except EnvironmentFailed as error:
        return _fail(error, 3)
    except CheckpointError as error:
        return _fail(error, 1)
    except KeyboardInterrupt:
        return _fail("interrupted" if options.run else "interrupted; what was learned is saved", 130)


def _train(options: argparse.Namespace) -> int:
    from rich.console import Console

    from algorithm.adapters.adapter import EnvironmentFailed
    from algorithm.experiment.assembly import train
    from algorithm.experiment.errors import UserError
    from algorithm.experiment.resume import resumed_settings
    from algorithm.experiment.run_folder import RunFolder

    console = Console(highlight=False, soft_wrap=True)
    if options.resume:
        folder = RunFolder.find(options.env, options.name)
        settings, changes = resumed_settings(folder, _overrides(options, "seed"))
        for line in changes:
            console.print(line, markup=False)
    else:
        folder = _new_run(options)
        settings = folder.settings()
    console.print(f"training {settings.base.env_name} with {settings.base.algorithm} in {folder.path}")
    try:
        result = train(settings, folder, console.print)
    except (UserError, EnvironmentFailed):
        if not options.resume:
            folder.discard()
        raise
    _report(console, options.env, folder.path, result)
    return 0


def _new_run(options: argparse.Namespace):
    from algorithm.experiment.run_folder import RunFolder, environment_folder, run_name
    from algorithm.experiment.settings import read_variant, resolve

    source = environment_folder(options.env)
    config = source / "config.yaml"
    settings = resolve(
        [(str(config), read_variant(config, options.config)), *_overrides(options, "name", "seed")],
    )
    return RunFolder.create(options.env, source, run_name(settings.base.name, time.time()), settings.tree)


def _overrides(options: argparse.Namespace, *flags: str) -> list:
    """The layers of settings that the command line gives."""
    from algorithm.experiment.settings import read_assignments

    given = {key: value for key in flags if (value := getattr(options, key)) is not None}
    return [("--set", read_assignments(options.set)), ("the command line", {"base_config": given})]


def _report(console, env: str, path, result) -> None:
    counters = result.counters
    done = f"{counters.env_steps:,} env steps, {counters.episodes:,} episodes, {result.seconds:.1f} s"
    for role, value in result.returns.items():
        of = f" of {role}" if len(result.returns) > 1 else ""
        console.print(f"mean return{of} of the last training episodes: {value:.1f}")
    console.print(
        {
            True: f"goal reached and confirmed by held-out episodes after {done}",
            False: f"goal not reached within {done}",
            None: f"done after {done}",
        }[result.reached]
    )
    console.print(f"run folder: {path}")
    console.print(f"play it:    python main.py {env} -n {path.name} --run")


def _play(options: argparse.Namespace) -> int:
    from rich.console import Console

    from algorithm.experiment.assembly import play
    from algorithm.experiment.run_folder import RunFolder

    folder = RunFolder.find(options.env, options.name)
    played = play(folder.settings(), folder, EPISODES, options.disable_sample, options.render)
    console = Console(highlight=False, soft_wrap=True)
    for role, result in played.items():
        of = f" of {role}" if len(played) > 1 else ""
        console.print(
            f"{folder.path}{of}: return {result.mean:.1f} +- {result.std:.1f}, "
            f"length {result.length:.1f}, over {len(result.returns)} episodes"
        )
    return 0


def _fail(message: object, status: int) -> int:
    print(f"{message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
