"""`--run`: playing with a trained run."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from algorithm.runs.commands import Command, make_request

if TYPE_CHECKING:
    from algorithm.cli.output import Output


class PlayCommand(Command):
    """`--run`: play the episodes of an evaluation with a trained run."""

    heavy_module = "algorithm.runs.playing"

    def check(self, options: argparse.Namespace, output: Output) -> None:
        """Raise UserError for a run that does not exist, and for settings that cannot be used with it."""
        from algorithm.runs.run_requests import check_existing_run

        check_existing_run(make_request(options), output.log)

    def run(self, options: argparse.Namespace, output: Output) -> None:
        """Play, and print the evaluation of each role."""
        from algorithm.cli.display import display_playing
        from algorithm.config.sections import count_evaluation_episodes
        from algorithm.parts.lock import check_links
        from algorithm.parts.make_env import Environments
        from algorithm.program import role_suffix
        from algorithm.runs.playing import play
        from algorithm.runs.results import make_evaluation_record
        from algorithm.runs.run_requests import find_run
        from algorithm.training.evaluator import get_mode_name
        from algorithm.training.metrics import format_number

        folder, settings = find_run(make_request(options), output.log)
        if options.logger_in_file or options.video:
            check_links(folder.given_path)
        if options.logger_in_file:
            output.log_to_file(folder.path / "log.txt")
        n_envs = options.agents or (1 if options.render else Environments(settings, folder).count_evaluation_envs())
        episodes = options.max_iter * n_envs if options.max_iter else count_evaluation_episodes(settings.goal)
        greedy = options.disable_sample or (settings.base.evaluate_greedy and not options.sample)
        played = (settings, folder, episodes, greedy, options.render, options.ckpt, n_envs, output.log)
        with display_playing(output.console, output.log) as show:
            evaluation = play(*played, video=options.video, show=show)
        for role, result in evaluation.items():
            std, length = format_number(result.std), format_number(result.length)
            output.log(f"{folder}{role_suffix(role)}: {result}; std {std}, mean length {length}")
        output.result = {
            "run": folder.given_path.as_posix(),
            "mode": get_mode_name(greedy),
            "evaluation": make_evaluation_record(evaluation),
        }
