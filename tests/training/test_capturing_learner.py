"""Captured updates against ordinary ones: the same numbers, bit for bit, on tensors that stay in place."""

from __future__ import annotations

import logging
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
import torch
from torch import Tensor

from algorithm.errors import UserError
from algorithm.networks import Blueprint, Conv, FrameStack, Gru, Mlp, RandomShift, Vector
from algorithm.networks.precision import Placement
from algorithm.rollout import Rollout
from algorithm.specs import ObsSpec, Role
from algorithm.training.capturing_learner import CapturingLearner, StaticBatch, describe_layout, find_obstacle
from algorithm.training.graph_backend import WARM_UPS, CudaGraphs
from algorithm.training.learner import Learner
from tests.builders import AutogradLearner, make_a2c, make_acer, make_ppo, make_reactor, make_sac
from tests.captured_cases import DISCRETE, LANES, MAX_STEP, UPDATES, every_case, make_case, make_role, make_rollouts
from tests.recording import RecordingBackend, iterate_referents


def make_pair(case: str, **arguments) -> tuple[Learner, CapturingLearner, RecordingBackend]:
    """Return a learner that runs its updates as they are and one that captures them, with equal parameters."""
    backend = RecordingBackend()
    agent, role = make_case(case)
    plain = AutogradLearner(agent, role, {}, MAX_STEP)
    plain.checks_gradient = False
    for step in plain._steps:
        step.keep_rate_on_device()
    agent, role = make_case(case)
    return plain, CapturingLearner(agent, role, {}, MAX_STEP, backend=backend, **arguments), backend


def make_updates(learner: Learner, rollouts: list[Rollout], reads=lambda update: True) -> list[dict[str, Tensor]]:
    """Make updates as a run does, and return their metrics and TD errors."""
    reports = []
    for rollout in rollouts:
        learner.observe(rollout)
        report = learner.compute_gradients(rollout)
        if not isinstance(learner, CapturingLearner):
            for step in learner._steps:
                step.set_rate(learner._compute_progress())
        learner.apply_gradients()
        if reads(learner.updates):
            errors = torch.from_numpy(report.compute_td_errors())
            reports.append({**report.compute_metrics(), "errors": errors, "seed": torch.get_rng_state()})
    return reports


def read_everything(learner: Learner) -> dict[str, Tensor]:
    """Return copies of everything that updates change."""
    flat = {"all": learner.parameters.all_parameters, "statistics": learner.parameters.statistics}
    copies = {name: tensor.clone() for name, tensor in flat.items()}
    return {**copies, "gradient": learner.parameters.gradient.clone(), **learner.state()}


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    different = [name for name, value in one.items() if not torch.equal(value.nan_to_num(), other[name].nan_to_num())]
    assert not different


def assert_equal_updates(plain: Learner, captured: Learner, rollouts: list[Rollout], seed: int) -> None:
    """Make the same updates with two learners, and check that their reports and all their numbers are equal."""
    results = []
    for learner in (plain, captured):
        torch.manual_seed(seed)
        results.append(make_updates(learner, rollouts))
    assert_equal(read_everything(plain), read_everything(captured))
    for one, other in zip(*results, strict=True):
        assert_equal(one, other)


@pytest.fixture(autouse=True)
def without_values(monkeypatch):
    """Weigh rows as on a device, where it is not known whether all rows are valid."""
    module = import_module("algorithm.networks.batch_statistics")  # not the function of this name
    monkeypatch.setattr(module, "_are_all_valid", lambda valid: False)


@every_case
def test_captured_updates_are_the_same_as_ordinary_ones_bit_for_bit(case):
    plain, captured, backend = make_pair(case)
    assert_equal_updates(plain, captured, make_rollouts(plain.agent, make_case(case)[1]), seed=1)
    phases = {plain.agent.find_phase(update) for update in range(1, UPDATES + 1)}
    assert backend.n_captures == 3 * len(phases)  # gradients, step and report
    assert backend.n_replays == 3 * (UPDATES - len(phases) * (WARM_UPS + 1))


@pytest.mark.parametrize("case", ["flash", "crossq, discrete", "discrete, masked"])
def test_reports_are_computed_only_when_they_are_read(case):
    # The first report of a phase is read after updates of the other phases have been captured.
    plain, captured, backend = make_pair(case)
    rollouts = make_rollouts(plain.agent, make_case(case)[1])
    results = []
    for learner in (plain, captured):
        torch.manual_seed(1)
        results.append(make_updates(learner, rollouts, reads=lambda update: update > 8 and update % 3 == 2))
    for one, other in zip(*results, strict=True):
        assert_equal(one, other)
    assert_equal(read_everything(plain), read_everything(captured))
    assert backend.n_replays < 3 * UPDATES - UPDATES // 2


def test_a_report_keeps_its_values_and_cannot_be_read_for_the_first_time_after_the_next_update():
    _, learner, _ = make_pair("flash")
    rollouts = make_rollouts(learner.agent, make_role())
    make_updates(learner, rollouts[:-2])
    report = learner.compute_gradients(rollouts[-2])
    learner.apply_gradients()
    metrics = report.compute_metrics()
    before = {name: value.clone() for name, value in metrics.items()}
    make_updates(learner, rollouts[-1:])
    assert_equal(metrics, before)
    with pytest.raises(RuntimeError, match="after the next update has begun"):
        report.compute_metrics()


def test_a_captured_report_refers_to_no_graph():
    for case in ("plain", "flash", "dqn", "hybrid"):
        agent, role = make_case(case)
        learner = Learner(agent, role, {}, None)
        agent.update = 2
        _, report = agent.loss(make_rollouts(agent, role, 2)[0].convert(torch.from_numpy))
        report.features = None
        tensors = [item for item in iterate_referents(report) if isinstance(item, Tensor)]
        assert len(tensors) > 5
        assert all(tensor.grad_fn is None for tensor in tensors), case
        assert learner.updates == 0


def test_a_gradient_that_is_not_finite_changes_nothing_in_captured_updates_too():
    _, learner, _ = make_pair("flash")
    rollouts = make_rollouts(learner.agent, make_role())
    make_updates(learner, rollouts)
    bad = replace(rollouts[0], reward=np.full_like(rollouts[0].reward, np.nan))
    names = ("all", "moments/critic", "moments/policy", "moments/alpha")
    before = read_everything(learner)
    for _ in range(2):
        learner.compute_gradients(bad)
        learner.apply_gradients()
    after = read_everything(learner)
    assert_equal({name: before[name] for name in names}, {name: after[name] for name in names})
    assert learner.skipped_updates == learner.consecutive_skips == 2
    make_updates(learner, rollouts[:2])
    assert learner.skipped_updates == 2 and learner.consecutive_skips == 0
    assert not torch.equal(read_everything(learner)["all"], before["all"])


@pytest.mark.parametrize("resumes_captured", [True, False], ids=["captured", "new"])
def test_a_checkpoint_is_restored_in_place(resumes_captured):
    plain, captured, _ = make_pair("flash")
    rollouts = make_rollouts(plain.agent, make_role())
    torch.manual_seed(1)
    make_updates(plain, rollouts)
    resumed = captured if resumes_captured else make_pair("flash")[1]
    if resumes_captured:
        make_updates(resumed, rollouts[:-3])  # its captures exist, with other parameters
    resumed.parameters.load(plain.parameters.state())
    resumed.restore(plain.state())
    assert_equal_updates(plain, resumed, rollouts, seed=2)


def test_td_errors_of_collected_rollouts_do_not_change_captured_updates():
    plain, captured, _ = make_pair("flash")
    rollouts = make_rollouts(plain.agent, make_role())
    for learner in (plain, captured):
        torch.manual_seed(1)
        for rollout in rollouts:
            make_updates(learner, [learner.record_td_errors(rollout)])
    assert_equal(read_everything(plain), read_everything(captured))


def test_batches_of_each_layout_are_captured_separately():
    plain, captured, backend = make_pair("plain")
    rollouts = make_rollouts(plain.agent, make_role())
    rollouts = [rollout.take_columns(np.arange(LANES - i % 2)) for i, rollout in enumerate(rollouts)]
    for learner in (plain, captured):
        torch.manual_seed(1)
        make_updates(learner, rollouts)
    assert_equal(read_everything(plain), read_everything(captured))
    assert backend.n_captures == 6


def test_the_rate_is_that_of_the_schedule_up_to_rounding():
    agent, role = make_case("flash")
    ordinary, (_, captured, _) = Learner(agent, role, {}, MAX_STEP), make_pair("flash")
    rollouts = make_rollouts(agent, role)
    rates = []
    for learner in (ordinary, captured):
        torch.manual_seed(1)
        rates.append([])
        for rollout in rollouts:
            learner.observe(rollout)
            report = learner.compute_gradients(rollout)
            learner.apply_gradients()
            rates[-1].append(report.compute_metrics()["train/critic_learning_rate"])
    torch.testing.assert_close(*map(torch.stack, rates), rtol=1e-6, atol=0)
    assert rates[0][-1] < 0.9 * rates[0][0]
    torch.testing.assert_close(captured.parameters.vector, ordinary.parameters.vector, rtol=1e-3, atol=1e-4)


class WaitingBackend(RecordingBackend):
    """A backend that finds a wait in each function."""

    def find_waits(self, function):
        return self.run(function), ["nn.py:7"]


def test_updates_that_wait_for_the_device_run_as_usual_and_a_line_is_logged(caplog):
    plain, learner, _ = make_pair("plain")
    learner._backend = backend = WaitingBackend()
    rollouts = make_rollouts(plain.agent, make_role())
    with caplog.at_level(logging.WARNING, "algorithm"):
        for either in (plain, learner):
            torch.manual_seed(1)
            make_updates(either, rollouts)
    assert_equal(read_everything(plain), read_everything(learner))
    assert backend.n_captures == 0
    (message,) = caplog.messages
    assert message == (
        "updates are not captured as CUDA graphs, since they wait for the device in nn.py:7; they run as usual"
    )


def test_updates_that_wait_for_the_device_are_an_error_if_capturing_is_required():
    _, learner, _ = make_pair("plain", is_required=True)
    learner._backend = WaitingBackend()
    with pytest.raises(UserError, match="nn.py:7: set base_config.cuda_graphs to off$"):
        make_updates(learner, make_rollouts(learner.agent, make_role()))


class ReadsValue(torch.nn.Module):
    """Layers that decide by the value of a tensor."""

    def __init__(self, size):
        super().__init__()
        self.size, self.layer = size, torch.nn.Linear(size, size)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else x


def test_the_record_refuses_operations_for_which_a_device_waits():
    agent = make_sac(make_role(), Blueprint(body=ReadsValue))
    learner = CapturingLearner(agent, make_role(), {}, None, backend=RecordingBackend())
    with pytest.raises(AssertionError, match="_local_scalar_dense.default depends on values"):
        make_updates(learner, make_rollouts(agent, make_role()))


def test_images_with_random_shifts_are_captured_and_precision_is_kept():
    spec = ObsSpec((3, 12, 12), "uint8")
    role = Role(LANES, {"image": spec}, DISCRETE)
    blueprint = Blueprint(encoders={"*": Conv((4, 3, 2), units=8)}, augmentations={"image": RandomShift(2)})
    agents = [make_sac(role, blueprint) for _ in range(2)]
    placement = Placement(precision=torch.bfloat16)
    plain = Learner(agents[0], role, {}, None, placement)
    plain.checks_gradient = False
    for step in plain._steps:
        step.keep_rate_on_device()
    captured = CapturingLearner(agents[1], role, {}, None, placement, backend=RecordingBackend())
    rng = np.random.default_rng(0)
    rollouts = [
        replace(rollout, obs={"image": rng.integers(256, size=(2, LANES, 3, 12, 12), dtype=np.uint8)})
        for rollout in make_rollouts(agents[0], make_role(DISCRETE))
    ]
    for learner in (plain, captured):
        torch.manual_seed(1)
        make_updates(learner, rollouts)
    assert_equal(read_everything(plain), read_everything(captured))


@pytest.mark.parametrize(
    ("agent", "reason"),
    [
        (lambda: make_sac(make_role(), ensemble_q_num=3, ensemble_q_sample=2), "Sac with these settings depend"),
        (lambda: make_sac(make_role(), Blueprint(body=Mlp(8), memory=Gru(4))), "networks with a memory"),
        (lambda: make_sac(make_role(), Blueprint(encoders={"*": FrameStack(2, Vector())})), "networks with a memory"),
        (make_acer, "Acer with these settings depend"),
        (make_reactor, "Reactor with these settings depend"),
        (make_a2c, "A2C with these settings depend"),
        (make_ppo, "Ppo with these settings depend"),
    ],
)
def test_what_is_not_captured_has_a_reason(agent, reason):
    assert reason in find_obstacle(agent(), {})


def test_auxiliaries_are_not_captured():
    assert find_obstacle(make_sac(make_role()), {}) is None
    assert find_obstacle(make_sac(make_role()), {"curiosity": None}) == "auxiliaries are not captured"


def test_a_static_batch_keeps_its_memory_and_has_the_values_of_the_last_batch():
    agent, role = make_case("discrete, masked")
    rollouts = make_rollouts(agent, role)
    batch = StaticBatch(rollouts[0], torch.device("cpu"))
    tensors = {name: getattr(batch.rollout, name) for name in ("first", "reward", "memory", "weight", "raw_action")}
    for rollout in rollouts:
        rollout = replace(rollout, raw_action=np.asfortranarray(rollout.raw_action))
        batch.load(rollout)
        assert all(getattr(batch.rollout, name) is tensor for name, tensor in tensors.items())
        for name, tensor in tensors.items():
            assert torch.equal(tensor, torch.from_numpy(getattr(rollout, name)))
        assert all(torch.equal(batch.rollout.obs[name], torch.from_numpy(obs)) for name, obs in rollout.obs.items())
        assert torch.equal(batch.rollout.valid, torch.from_numpy(rollout.valid))


def test_layouts_differ_by_names_shapes_types_and_burn_in():
    agent, role = make_case("plain")
    rollout = make_rollouts(agent, role)[0]
    others = [
        rollout.take_columns(np.arange(2)),
        replace(rollout, burn_in=1),
        replace(rollout, reward=rollout.reward.astype(np.float64)),
        replace(rollout, obs={"other": rollout.obs["obs"]}),
        replace(rollout, records={"curiosity": rollout.reward}),
    ]
    layouts = {describe_layout(either) for either in (rollout, *make_rollouts(agent, role)[1:3])}
    assert len(layouts) == 1
    assert len({*layouts, *map(describe_layout, others)}) == 6


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
@every_case
def test_on_a_cuda_device_captured_updates_are_those_of_ordinary_ones(case):
    device, results = torch.device("cuda"), []
    for captures in (False, True):
        agent, role = make_case(case)
        placement = Placement(learning=device)
        if captures:
            learner = CapturingLearner(
                agent, role, {}, MAX_STEP, placement, backend=CudaGraphs(device), is_required=True
            )
        else:
            learner = Learner(agent, role, {}, MAX_STEP, placement)
            for step in learner._steps:
                step.keep_rate_on_device()
        torch.manual_seed(1)
        reports = make_updates(learner, make_rollouts(agent, role))
        results.append((read_everything(learner), reports))
    (plain, plain_reports), (captured, captured_reports) = results
    # Sums of a categorical target are added in any order.
    for name, value in plain.items():
        torch.testing.assert_close(captured[name], value, rtol=1e-3, atol=1e-4, equal_nan=True)
    for one, other in zip(plain_reports, captured_reports, strict=True):
        assert one.keys() == other.keys()
        for name in one.keys() - {"seed"}:
            torch.testing.assert_close(other[name], one[name], rtol=1e-2, atol=1e-3, equal_nan=True)
