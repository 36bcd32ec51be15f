"""Lessons end by the mean return of a role, or by the progress of training."""

from algorithm.adapters.curriculum import EnvironmentParameters, Lesson


def test_lessons_wait_for_the_mean_of_their_role_and_are_restored():
    lessons = (Lesson("a", 0.0, "x", 2, 5.0), Lesson("b", 1.0, "x", 1, 100.0), Lesson("c", 2.0))
    scene = EnvironmentParameters({"p": lessons})
    for role, reward in (("x", 9), ("y", 99), ("x", 0)):
        scene.record_episode(role, reward)
    assert scene.current == {"p": 0.0}
    other = EnvironmentParameters({"p": lessons})
    other.restore(scene.state())
    other.record_episode("x", 10.0)
    assert other.current == {"p": 1.0}
    other.record_episode("x", 100.0)
    assert other.current == {"p": 2.0}
    other.record_episode("x", 1000.0)
    third = EnvironmentParameters({"p": lessons})
    third.restore(other.state())
    assert third.current == {"p": 2.0}


def test_lessons_by_progress_wait_for_the_env_steps_and_their_episodes(caplog):
    share = 0.0
    first = Lesson("a", 0.0, "x", 2, 0.25, "progress")
    lessons = (first, Lesson("b", 1.0, "x", 1, 0.5, "progress"), Lesson("c", 2.0))
    scene = EnvironmentParameters({"p": lessons}, lambda: share)
    values = []
    for share in (0.1, 0.2, 0.25, 0.4, 0.75):  # noqa: B007
        scene.record_episode("y", 1000.0)
        scene.record_episode("x", 1000.0)
        values.append(scene.current["p"])
    assert values == [0, 0, 1, 1, 2]
    assert [record.message for record in caplog.records] == [
        "p: lesson b begins, after 25% of training",
        "p: lesson c begins, after 75% of training",
    ]
    share = 0.3
    before = EnvironmentParameters({"p": lessons}, lambda: share)
    before.record_episode("x", -1000.0)
    after = EnvironmentParameters({"p": lessons}, lambda: share)
    after.restore(before.state())
    after.record_episode("x", -1000.0)
    assert [before.current, after.current] == [{"p": 0.0}, {"p": 1.0}]
