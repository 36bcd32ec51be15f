"""Compare updates of SAC on a CUDA device with and without their capture as CUDA graphs: variants of MuJoCo's folders.

Both learners have the same batches, from a replay, and alternate in one process. Updates are timed with the device
synchronized at the ends of each round. Without a CUDA device the benchmark prints one line.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from measure import describe_setup, format_spread
from soft import make_row

from algorithm.agents.sac.agent import Sac
from algorithm.agents.sac.settings import SacSettings
from algorithm.config.variants import read_variant
from algorithm.config.yaml_layers import load_defaults
from algorithm.networks.precision import Placement
from algorithm.parts.env_folder import find_folder
from algorithm.parts.torch_setup import configure_torch, describe_device
from algorithm.parts.user_code import load_blueprint
from algorithm.replay import Replay
from algorithm.rollout import Rollout
from algorithm.specs import ActionSpec, ObsSpec, Role
from algorithm.training.capturing_learner import CapturingLearner
from algorithm.training.graph_backend import CudaGraphs
from algorithm.training.learner import Learner

SIZES = {"mujoco/half_cheetah": (17, 6), "mujoco/humanoid": (348, 17)}  # observations and actions
CAPACITY = 10_000
WARM_UPS, UPDATES = 30, 200


def make_updates(folder_name: str, variant: str, device: torch.device) -> dict[str, Callable[[], None]]:
    """Return functions that make an update of a variant, by the way in which they make it."""
    folder = find_folder(folder_name)
    assert folder is not None
    n_obs, n_actions = SIZES[folder_name]
    tree = read_variant(folder / "config.yaml", variant)
    settings = SacSettings(**{**load_defaults()["sac_config"], **tree.get("sac_config", {})})
    blueprint = load_blueprint(folder, "nn.py", tree.get("nn_config", {}))
    assert blueprint is not None
    role = Role(1, {"obs": ObsSpec((n_obs,))}, ActionSpec(n_actions))
    rng = np.random.default_rng(0)
    replay = Replay(capacity=CAPACITY, lanes=1, chunk=1, length=settings.sequence_length, rng=rng)
    for row in range(CAPACITY):
        replay.add(make_row(rng, row == 0, n_obs, n_actions))

    def sample() -> Rollout:
        batch = replay.sample(settings.batch_size)
        assert batch is not None
        return batch

    def make_update(make_learner: Callable[..., Learner]) -> Callable[[], None]:
        torch.manual_seed(0)
        learner = make_learner(Sac(settings, blueprint, role, rng), role, {}, None, Placement(learning=device))

        def update() -> None:
            learner.compute_gradients(sample())
            learner.apply_gradients()

        return update

    graphs = CudaGraphs(device)
    return {
        "as they are": make_update(Learner),
        "captured": make_update(lambda *arguments: CapturingLearner(*arguments, backend=graphs, is_required=True)),
        "batches only": lambda: None if sample() else None,
    }


def measure_rates(updates: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Return the updates per second of each way, in each round."""
    for update in updates.values():
        for _ in range(WARM_UPS):
            update()
    rates: dict[str, list[float]] = {name: [] for name in updates}
    for _ in range(rounds):
        for name, update in updates.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(UPDATES):
                update()
            torch.cuda.synchronize()
            rates[name].append(UPDATES / (time.perf_counter() - begin))
    return rates


def main() -> None:
    """Print the updates per second of each variant with and without capture, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--variants", nargs="+", default=["flash", "sac", "crossq"])
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("torch finds no CUDA device: nothing is measured")
        return
    configure_torch()
    device = torch.device("cuda", torch.cuda.current_device())
    print(f"{describe_device(device)}, {describe_setup()}", flush=True)
    print("| folder | variant | updates/s as they are | updates/s captured | ratio | batches/s |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for folder in SIZES:
        for variant in options.variants:
            rates = measure_rates(make_updates(folder, variant, device), options.rounds)
            plain, captured = rates["as they are"], rates["captured"]
            ratios = [one / other for one, other in zip(captured, plain, strict=True)]
            cells = [format_spread(plain), format_spread(captured), format_spread(ratios, 2)]
            batches = f"{statistics.median(rates['batches only']):,.0f}"
            print(f"| {folder} | {variant} | {' | '.join(cells)} | {batches} |", flush=True)


if __name__ == "__main__":
    main()
