"""Comparisons of runs whose metrics are known: groups, curves, scores, goals, and lines about what is missing."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from algorithm.errors import UserError
from algorithm.tools.reports.comparison import compare
from algorithm.tools.reports.comparison_output import format_range, write_files
from tests.tools.reports.run_folders import write_curve

LINE = {0: 0.0, 100: 100.0}


@pytest.fixture
def runs(tmp_path):
    return tmp_path / "runs"


def write_group(runs, name, *curves, **options):
    """Write the runs NAME-1, NAME-2, ... with the seeds 0, 1, ..., which have these curves."""
    for seed, curve in enumerate(curves):
        write_curve(runs / f"{name}-{seed + 1}", curve, seed=seed, **options)


def compare_all(runs, metric=None):
    """Return the comparison of all runs below a folder, and the logged lines."""
    lines = []
    comparison = compare([str(runs)], metric, lines.append)
    assert list(comparison.notes) == lines and not any("\n" in line for line in lines)
    return comparison, lines


def only_environment(runs, metric=None):
    """Return the result of the only environment, and its groups by label."""
    (result,) = compare_all(runs, metric)[0].environments
    return result, {group.label: group for group in result.groups}


def list_groups(runs):
    """Return the names of the runs in each group, by label."""
    return {label: [run.folder.name for run in group.runs] for label, group in only_environment(runs)[1].items()}


def shifted(offset):
    return {env_steps: value + offset for env_steps, value in LINE.items()}


def test_runs_that_differ_in_seed_and_name_only_are_a_group(runs):
    other = {"base_config": {"log_every": 7}, "sac_config": {"gamma": 0.5}}  # neither changes what ACER learns
    for seed in range(3):
        write_curve(runs / f"a-{seed + 1}", LINE, seed=seed, settings=other if seed else None)
    write_group(runs, "b", LINE, variant="sac", algorithm="SAC")
    write_group(runs, "c", LINE, LINE, settings={"acer_config": {"gamma": 0.9}})
    assert list_groups(runs) == {
        "ACER gamma=0.99": ["a-1", "a-2", "a-3"],
        "SAC (sac)": ["b-1"],
        "ACER gamma=0.9": ["c-1", "c-2"],
    }


def test_settings_with_long_values_that_begin_and_end_alike_are_separate_groups(runs):
    wrappers = [f"package.of.wrappers.with.a.long.name:{name}Wrapper" for name in ("First", "Second")]
    for name, wrapper in zip("ab", wrappers, strict=True):
        write_group(runs, name, LINE, settings={"base_config": {"env_wrappers": [wrapper]}})
    expected = {f'ACER env_wrappers=["{wrapper}"]': [f"{name}-1"] for name, wrapper in zip("ab", wrappers, strict=True)}
    assert list_groups(runs) == expected


def test_a_repeated_seed_divides_a_group_by_the_names_of_its_runs(runs):
    for name in "ab":
        write_group(runs, name, LINE, LINE)
    assert list(list_groups(runs)) == ["ACER a", "ACER b"]
    write_curve(runs / "b-3", LINE, seed=1)
    _, lines = compare_all(runs)
    assert lines[0] == (
        "mine/task ACER b has several runs with seed 1: they are not independent, its interval is too narrow"
    )


def test_a_setting_that_a_run_lacks_has_its_default(runs):
    newer = {"acer_config": {"gamma": 0.9}, "ma_config": {"walker": {"alpha": 1}}}
    write_curve(runs / "a", LINE, settings=newer)
    for name in ("b", "c"):
        write_curve(runs / name, LINE, seed=ord(name))
    config = runs / "c/config.yaml"
    config.write_text("\n".join(line for line in config.read_text().splitlines() if "learning_rate" not in line))
    assert list_groups(runs) == {
        "ACER alpha=1 gamma=0.9 ma_config=null": ["a"],
        "ACER alpha=null gamma=0.99 ma_config={}": ["b", "c"],
    }


def test_a_name_of_a_setting_in_two_sections_has_its_section(runs):
    for name, (low, high) in {"a": (0.1, 1), "b": (0.5, 2)}.items():
        sections = {"replay_config": {"alpha": low}, "ma_config": {"walker": {"alpha": high}}}
        write_curve(runs / name, LINE, settings=sections)
    assert list(list_groups(runs)) == [
        "ACER ma_config.walker.alpha=1 replay_config.alpha=0.1",
        "ACER ma_config.walker.alpha=2 replay_config.alpha=0.5",
    ]


def test_curves_are_means_at_the_same_env_steps(runs):
    write_group(runs, "a", {0: 0.0, 50: 50.0, 200: 50.0}, {20: 10.0, 100: 90.0, 120: 90.0})
    group = only_environment(runs)[1]["ACER"]
    # From the first value of the second run to the end of the second run, which is shorter.
    assert (group.env_steps[0], group.env_steps[-1]) == (20, 120)
    first = np.interp(group.env_steps, [0, 50, 200], [0, 50, 50])
    second = np.interp(group.env_steps, [20, 100, 120], [10, 90, 90])
    np.testing.assert_allclose(group.mean_curve.value, (first + second) / 2)
    assert (group.mean_curve.low <= group.mean_curve.value + 1e-9).all()


def test_a_run_keeps_its_value_after_its_goal_and_an_interrupted_one_ends_the_curve(runs):
    write_curve(runs / "a-1", {0: 0.0, 50: 100.0}, seed=0, reached=True)
    write_curve(runs / "a-2", {0: 0.0, 80: 40.0}, seed=1, status=130)
    comparison, lines = compare_all(runs)
    group = comparison.environments[0].groups[0]
    assert group.env_steps[-1] == 80 and group.mean_curve.value[-1] == (100 + 40) / 2
    assert f"{runs}/a-2 is not complete (interrupted): its curve ends at 80 env steps" in lines
    assert f"mine/task: values are compared at 80 env steps, where {runs}/a-2 ends" in lines


def test_values_are_compared_where_the_first_group_ends(runs):
    write_group(runs, "a", LINE, shifted(4))
    write_group(runs, "b", {0: 0.0, 300: 600.0}, {0: 2.0, 300: 602.0}, variant="b")
    result, groups = only_environment(runs)
    assert result.env_steps == 100
    assert groups["ACER"].scores.tolist() == [100, 104]
    assert groups["ACER (b)"].scores.tolist() == [200, 202]
    assert groups["ACER (b)"].mean.value == groups["ACER (b)"].iqm.value == 201
    (improvement,) = result.improvements
    assert (improvement.label, improvement.other) == ("ACER (b)", "ACER")
    assert improvement.value == 1 and improvement.is_complete
    assert improvement.chance == pytest.approx(2 / 6)  # of the 6 orders of two pairs of runs
    assert str(improvement) == "1.000 (every run; by chance 0.33)"


def test_groups_that_all_reached_their_goals_are_compared_where_the_first_of_them_has(runs):
    write_group(runs, "a", {0: 0.0, 60: 100.0}, {0: 0.0, 80: 100.0}, reached=True)
    write_group(runs, "b", {0: 0.0, 400: 100.0}, reached=True, variant="b")
    result, groups = only_environment(runs)
    assert result.env_steps == 80
    assert groups["ACER (b)"].scores.tolist() == [20]
    assert groups["ACER (b)"].env_steps[-1] == 400


def test_steps_and_cpu_seconds_to_the_goal(runs):
    for seed, (end, reached) in enumerate([(60, True), (80, True), (100, False)]):
        write_curve(runs / f"a-{seed}", {0: 0.0, end: 9.0}, reached=reached, seed=seed, cpu_seconds=end / 10)
    for seed, reached in enumerate([True, False]):
        write_curve(runs / f"b-{seed}", LINE, reached=reached, seed=seed, variant="b", cpu_seconds=1.0)
    write_curve(runs / "c-0", LINE, reached=True, variant="c")
    groups = only_environment(runs)[1]
    assert groups["ACER"].reached == 2 and list(groups["ACER"].env_steps_to_goal) == [60, 80, np.inf]
    assert format_range(groups["ACER"].env_steps_to_goal, ",.0f") == "80 (60 to not reached)"
    assert format_range(groups["ACER"].cpu_seconds_to_goal, ",.1f") == "8.0 (6.0 to not reached)"
    assert format_range(groups["ACER (b)"].env_steps_to_goal, ",.0f") == "-"  # half of the runs did not reach it
    assert groups["ACER (c)"].cpu_seconds_to_goal is None and format_range(None, ",.0f") == "-"
    assert format_range(groups["ACER (c)"].env_steps_to_goal, ",.0f") == "100 (100 to 100)"


def test_damaged_lines_are_a_gap_in_the_mean_curve(runs):
    curve = {0: 0.0, 30: 30.0, 70: 70.0, 100: 100.0}
    write_curve(runs / "a-1", curve, seed=0, damaged_after=[30])
    write_curve(runs / "a-2", curve, seed=1)
    comparison, lines = compare_all(runs)
    group = comparison.environments[0].groups[0]
    missing = np.isnan(group.mean_curve.value)
    np.testing.assert_array_equal(missing, (group.env_steps > 30) & (group.env_steps < 70))
    assert lines[0] == f"{runs}/a-1/metrics.csv is damaged: 1 of its lines cannot be read"
    assert group.scores.tolist() == [100, 100]


def test_roles_are_averaged_and_a_single_role_can_be_compared(runs):
    folder = write_curve(runs / "a", LINE)
    (folder / "metrics.csv").write_text("env_steps,rollout/return/x,rollout/return/y\n0,1,3\n10,0,0\n10,2,6\n")
    assert only_environment(runs)[1]["ACER"].scores.tolist() == [4]
    assert only_environment(runs, "rollout/return/y")[1]["ACER"].scores.tolist() == [6]


def test_evaluations_are_compared_if_all_runs_have_them_regularly(runs):
    evaluated = {"base_config": {"evaluate_every": 50}}
    write_curve(runs / "a", LINE, settings=evaluated, column="eval/return")
    assert compare_all(runs)[0].metric == "eval/return"
    write_curve(runs / "b", LINE, seed=1)
    with pytest.raises(UserError) as error:
        compare_all(runs)
    assert str(error.value) == (
        f"{runs}/a has no value of rollout/return; compare another metric (--metric), it has time/seconds, eval/return"
    )
    assert compare_all(runs, "time/seconds")[0].metric == "time/seconds"


def write_two_environments(runs, **goals):
    for environment, (low, high, goal) in {"gym/x": (0, 50, 100), "gym/y": (-300, -100, -50)}.items():
        options = {"environment": environment, "goal": goals.get("goal", goal)}
        for name, variant, rise in (("a", "default", 0), ("b", "b", 10)):
            curves = [{0: low + seed, 100: high + rise + seed} for seed in range(3)]
            write_group(runs / environment, name, *curves, variant=variant, **options)


def test_scores_of_several_environments_are_normalized_by_first_value_and_goal(runs):
    write_two_environments(runs)
    write_curve(runs / "gym/x/alone", {0: 1.0, 100: 0.0}, environment="gym/x", variant="alone")
    comparison, lines = compare_all(runs)
    assert "gym/x: ACER (alone) is a single run and has no interval" in lines
    overall = comparison.overall
    assert [group.label for group in overall.groups] == ["ACER", "ACER (b)"]  # the groups of both environments
    assert overall.references == {"gym/x": {"start": 1, "goal": 100}, "gym/y": {"start": -299, "goal": -50}}
    x = (np.array([50, 51, 52]) - 1) / 99
    y = (np.array([-100, -99, -98]) + 299) / 249
    assert overall.groups[0].mean.value == pytest.approx((x.mean() + y.mean()) / 2)
    assert overall.groups[0].thresholds[0] == pytest.approx(min(*x, *y))
    (improvement,) = overall.improvements
    assert improvement.is_complete and improvement.chance == pytest.approx(2 / 20**2)


@pytest.mark.parametrize(
    ("goal", "reason"),
    [(None, "the runs of gym/y have no goal in common"), (-400, "the runs of gym/y start above their goal, at -299.0")],
)
def test_without_goals_only_probabilities_cover_several_environments(runs, goal, reason):
    write_two_environments(runs, goal=goal)
    overall = compare_all(runs)[0].overall
    assert overall.obstacle == reason and not overall.groups
    assert len(overall.improvements) == 1


def test_runs_and_folders_and_patterns_are_read_once(runs, monkeypatch):
    write_group(runs / "mine", "a", *map(shifted, range(11)))
    (runs / "mine/note.txt").write_text("")
    (runs / "mine/a-compare.html").write_text("")  # of --repeat
    shutil.copytree(runs / "mine/a-1", runs / "mine/.a-1.replaced")
    monkeypatch.chdir(runs)
    for patterns in (["mine"], ["mine/a-*"], [str(runs / "mine/a-?"), "mine"], [f"mine/a-{k}" for k in range(1, 12)]):
        (group,) = compare(patterns, None, pytest.fail).environments[0].groups
        assert [run.folder.name for run in group.runs] == [f"a-{k}" for k in range(1, 12)]


def test_few_runs_are_noted(runs):
    write_group(runs, "a", *map(shifted, range(3)))
    assert compare_all(runs)[1] == [
        "mine/task: fewer than 5 runs (ACER 3): their intervals cover the mean in at most 75% of all cases, not in 95%"
    ]


def test_what_is_no_run_is_left_out_with_a_line(runs):
    write_curve(runs / "a", LINE)
    (runs / "empty").mkdir()
    (write_curve(runs / "new", LINE) / "metrics.csv").unlink()
    (write_curve(runs / "damaged", LINE) / "metrics.csv").write_text("no table\n")
    lines = []
    comparison = compare([str(runs / name) for name in ("a", "empty", "new", "damaged")], None, lines.append)
    assert len(comparison.environments[0].groups[0].runs) == 1
    assert lines[:4] == [
        f"{runs}/empty has no run (a folder with config.yaml and environment.txt): it is left out",
        f"{runs}/new has no metrics.csv yet: it is left out",
        f"{runs}/damaged/metrics.csv is damaged: 1 of its lines cannot be read",
        f"{runs}/damaged has no row of metrics that can be read: it is left out",
    ]
    with pytest.raises(UserError, match="there is no run with metrics in .*empty; name folders such as"):
        compare([str(runs / "empty")], None, lines.append)
    with pytest.raises(UserError, match=r"nowhere\*: there is no such folder; name run folders, such as runs/gym"):
        compare([str(runs / "nowhere*")], None, print)


def test_runs_without_common_env_steps_are_an_error(runs):
    write_group(runs, "a", {10: 1.0}, {20: 1.0, 30: 2.0})
    message = "one ends at 10 env steps, another has its first value of rollout/return at 20"
    with pytest.raises(UserError, match=message):
        compare_all(runs)


@pytest.mark.parametrize("variant", ["default", "b"])
def test_a_run_that_is_first_evaluated_a_little_after_the_end_of_another_one_is_compared(runs, variant):
    evaluated = {"settings": {"base_config": {"evaluate_every": 50_000}}, "column": "eval/return"}
    write_curve(runs / "a-1", {50_000: 10.0}, seed=0, **evaluated)
    write_curve(runs / "b-1", {50_001: 30.0}, seed=1, variant=variant, **evaluated)
    comparison, lines = compare_all(runs)
    scores = [score for group in comparison.environments[0].groups for score in group.scores.tolist()]
    assert comparison.metric == "eval/return" and scores == [10, 30]
    expected = "compared at 50,000 env steps; the first value of eval/return of a run at 50,001 counts"
    assert sum(expected in line for line in lines) == 1
    assert all(path.is_file() for path in write_files(comparison, runs, "compare"))


def test_a_run_without_settings_is_left_out(runs):
    write_curve(runs / "a-1", LINE)
    for number, content in enumerate(("", "base_config: 3\n", "a: [", "base_config: {algorithm: ACER}\n"), 2):
        (write_curve(runs / f"a-{number}", LINE) / "config.yaml").write_text(content)
        (runs / f"a-{number}" / "environment.txt").write_bytes(b"\xff")
    comparison, lines = compare_all(runs)
    assert [len(group.runs) for group in comparison.environments[0].groups] == [1]
    assert sum("config.yaml" in line and line.endswith("left out") for line in lines) == 4
