"""The arithmetic of benchmarks/cluster_model.py."""

import numpy as np
import pytest

from benchmarks.cluster_model import ClusterModel, LinearCost, Measurement, Workload, compute_relative_errors, fit_cost

LOAD = Workload(env_steps=40, seconds=0.8, megabytes=2.0, parameters=0.5, updates={100: 3, 50: 1})
MODEL = ClusterModel(
    rollout=LinearCost({"constant": 0.001, "megabytes": 0.002, "actors": 0.00001}),
    publish=LinearCost({"constant": 0.002, "parameters": 0.004}),
    receive=LinearCost({"constant": 0.01, "parameters": 0.02}),
    update=LinearCost({"constant": 0.001, "rows": 0.0001}),
)


def measure(cost: LinearCost) -> list[Measurement]:
    """Return measurements of a cost in a grid of sizes."""
    grid = [{"megabytes": size, "actors": actors} for size in (0.01, 1.0, 9.0) for actors in (1, 8, 500)]
    return [Measurement(quantities, cost.predict(quantities)) for quantities in grid]


def test_the_cost_of_exact_measurements_is_found():
    fitted = fit_cost(["constant", "megabytes", "actors"], measure(MODEL.rollout))
    assert fitted.seconds_per_unit == pytest.approx(MODEL.rollout.seconds_per_unit)
    assert compute_relative_errors(fitted, measure(MODEL.rollout)) == pytest.approx([0.0] * 9, abs=1e-9)


def test_a_constant_minimizes_the_squared_relative_errors():
    fitted = fit_cost(["constant"], [Measurement({}, 1.0), Measurement({}, 2.0)])
    # The derivative of (c - 1)^2 + (c / 2 - 1)^2 is zero.
    assert fitted.seconds_per_unit["constant"] == pytest.approx(1.2)


def test_errors_are_relative_to_the_measurement():
    cost = LinearCost({"constant": 3.0})
    assert compute_relative_errors(cost, [Measurement({}, 2.0), Measurement({}, 4.0)]) == pytest.approx([0.5, -0.25])


def test_few_actors_limit_the_speed_and_many_the_learner():
    assert MODEL.predict_speed(LOAD, 1) == pytest.approx(40 / 0.82)
    assert MODEL.predict_speed(LOAD, 8) == pytest.approx(8 * 40 / 0.82)
    assert MODEL.predict_speed(LOAD, 1000) == pytest.approx(40 / 0.058)


def test_saturation_is_where_the_learner_becomes_the_limit():
    saturation = MODEL.find_saturation(LOAD)
    speeds = [MODEL.predict_speed(LOAD, actors) for actors in range(1, 60)]
    assert saturation - (int(np.argmax(speeds)) + 1) in (0, 1)
    assert MODEL.predict_speed(LOAD, saturation) < saturation * 40 / 0.82
    assert MODEL.predict_speed(LOAD, saturation - 1) == pytest.approx((saturation - 1) * 40 / 0.82)
    assert MODEL.find_saturation(LOAD, limit=5) == 5
