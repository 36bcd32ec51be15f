import logging

from algorithm.runs.faults import MAX_LINES, record_faults
from algorithm.training.progress import Counters

LOG = logging.getLogger("algorithm.adapters.somewhere")


def test_a_fault_is_a_line_with_its_time_and_the_log_has_all_of_it(tmp_path):
    said, counters = [], Counters(env_steps=1234)
    with record_faults(tmp_path / "faults.log", said.append, counters):
        LOG.warning("the reward of\n lane 3 is NaN")
        counters.env_steps = 5678
        LOG.info("Traceback\n  of it")
    assert said == ["env step 1,234: the reward of lane 3 is NaN"]
    text = (tmp_path / "faults.log").read_text()
    assert "env step 1,234: the reward of\n lane 3" in text
    assert "env step 5,678: Traceback\n  of it" in text


def test_faults_that_do_not_end_do_not_bury_the_rest(tmp_path):
    said = []
    with record_faults(tmp_path / "faults.log", said.append, Counters()):
        for number in range(100):
            LOG.warning(f"fault {number}")
    assert len(said) == MAX_LINES + 1
    assert "faults.log" in said[-1]
    assert "fault 99" in (tmp_path / "faults.log").read_text()


def test_nothing_is_left_behind_and_no_file_is_made_without_a_fault(tmp_path):
    log, said = logging.getLogger("algorithm"), []
    before = log.level, list(log.handlers)
    with record_faults(tmp_path / "faults.log", said.append, Counters()):
        pass
    LOG.warning("later")
    assert (log.level, log.handlers) == before
    assert not said and not list(tmp_path.iterdir())


def test_a_log_that_cannot_be_written_keeps_no_fault_from_the_user(tmp_path, capsys):
    said = []
    with record_faults(tmp_path / "missing" / "faults.log", said.append, Counters()):
        LOG.warning("the reward of lane 3 is NaN")
    assert len(said) == 1
    assert capsys.readouterr().err == ""
