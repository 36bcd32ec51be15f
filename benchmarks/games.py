"""Play trained agents of board games against players that were not trained: minimax, random moves, all moves.

Connect four: 200 games against minimax of depth 2 with random ties, and 200 against random moves, sides alternating;
with --versions also those of past versions of the run. Tic-tac-toe: every sequence of replies, on both sides.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from measure import describe_setup
from pettingzoo.classic import connect_four_v3, tictactoe_v3

import algorithm
from algorithm.checkpointing.checkpoint import Checkpoint
from algorithm.parts.components_builder import load_agent
from algorithm.parts.run_folder import RunFolder
from algorithm.runs.trained_agent import TrainedAgent

ROWS, COLUMNS = 6, 7
Player = Callable[[dict], int]  # observation -> action


def find_lines() -> np.ndarray:
    """Return the indices [69, 4] of each line of four cells."""
    cells = np.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS)
    lines = []
    for row in range(ROWS):
        for column in range(COLUMNS):
            for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                end_row, end_column = row + 3 * down, column + 3 * right
                if end_row < ROWS and 0 <= end_column < COLUMNS:
                    lines.append([cells[row + step * down, column + step * right] for step in range(4)])
    return np.array(lines)


LINES = find_lines()


def has_won(board: np.ndarray) -> bool:
    """Return whether the cells [42] bool of a player include a line."""
    return bool(board[LINES].all(1).any())


def drop(own: np.ndarray, other: np.ndarray, column: int) -> np.ndarray:
    """Return the cells of a player after a piece falls into a column."""
    taken = (own | other).reshape(ROWS, COLUMNS)[:, column]
    after = own.copy()
    after[(ROWS - 1 - int(taken.sum())) * COLUMNS + column] = True
    return after


def find_columns(own: np.ndarray, other: np.ndarray) -> list[int]:
    """Return the columns that are not full."""
    return np.flatnonzero(~(own | other)[:COLUMNS]).tolist()


def make_minimax(rng: np.random.Generator) -> Player:
    """Return a player that sees its own victory, and that of the next reply; equally good columns are drawn."""

    def evaluate(own: np.ndarray, other: np.ndarray, column: int) -> int:
        after = drop(own, other, column)
        if has_won(after):
            return 1
        return -int(any(has_won(drop(other, after, reply)) for reply in find_columns(other, after)))

    def play(obs: dict) -> int:
        own, other = (obs["observation"][:, :, side].astype(bool).ravel() for side in (0, 1))
        values = {column: evaluate(own, other, column) for column in find_columns(own, other)}
        best = max(values.values())
        return int(rng.choice([column for column, value in values.items() if value == best]))

    return play


def make_random(rng: np.random.Generator) -> Player:
    """Return a player of random moves."""
    return lambda obs: int(rng.choice(np.flatnonzero(obs["action_mask"])))


def make_greedy(agent: TrainedAgent) -> Player:
    """Return a trained agent as a player."""

    def play(obs: dict) -> int:
        agent.reset()
        return int(agent.act(obs))

    return play


def play_games(player: Player, opponent: Player, games: int) -> float:
    """Return the points of a player per game of connect four, sides alternating."""
    env, points = connect_four_v3.env(), 0.0
    for game in range(games):
        players = [player, opponent] if game % 2 == 0 else [opponent, player]
        env.reset(seed=game)
        mine = env.possible_agents[game % 2]
        for agent in env.agent_iter():
            obs, reward, ended, truncated, _ = env.last()
            if agent == mine and (ended or truncated):
                points += (1 + reward) / 2
            env.step(None if ended or truncated else players[env.possible_agents.index(agent)](obs))
    return points / games


def play_all_replies(player: Player, side: int) -> Iterator[float]:
    """Yield the reward of a player of tic-tac-toe for every sequence of replies."""
    env = tictactoe_v3.env()
    waiting: list[list[int]] = [[]]
    while waiting:
        moves = waiting.pop()
        env.reset()
        for move in moves:
            env.step(move)
        mine = env.possible_agents[side]
        while not any(env.terminations.values()) and env.agent_selection == mine:
            moves = [*moves, player(env.observe(mine))]
            env.step(moves[-1])
        if any(env.terminations.values()):
            yield float(env.rewards[mine])
        else:
            replies = np.flatnonzero(env.observe(env.agent_selection)["action_mask"])
            waiting += [[*moves, int(reply)] for reply in replies]


def list_versions(run: Path) -> Iterator[tuple[int, TrainedAgent]]:
    """Yield the env steps and the agent of each past version of a run."""
    folder = RunFolder(run)
    settings, ((name, role),) = folder.load_settings(), folder.read_roles().items()
    for steps in sorted(int(path.name) for path in (run / "opponents").iterdir()):
        agent = load_agent(settings, folder, Checkpoint(run / "opponents" / str(steps)), name, role)
        yield steps, TrainedAgent(agent, role, disable_sample=True)


def main() -> None:
    """Play the games of each run, and print a line for each kind of opponent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders of one of the two games")
    parser.add_argument("--games", type=int, default=200)
    parser.add_argument("--versions", action="store_true", help="connect four: play the past versions, too")
    options = parser.parse_args()
    print(describe_setup())
    for run in options.runs:
        agent = algorithm.load(run, disable_sample=True)
        player = make_greedy(agent)
        if agent.role.action_spec.branches == (9,):
            for side, name in enumerate(("first", "second")):
                rewards = list(play_all_replies(player, side))
                print(f"{run}, {name}: {len(rewards)} games, {rewards.count(-1.0)} lost, {rewards.count(0.0)} drawn")
            continue
        rng = np.random.default_rng(0)
        for name, opponent in (("minimax of depth 2", make_minimax(rng)), ("random moves", make_random(rng))):
            print(f"{run}: {play_games(player, opponent, options.games):.3f} of the points against {name}")
        if options.versions:
            for steps, version in list_versions(run):
                points = play_games(make_greedy(version), make_minimax(rng), options.games)
                print(f"{run} at {steps}: {points:.3f} of the points against minimax of depth 2", flush=True)


if __name__ == "__main__":
    main()
