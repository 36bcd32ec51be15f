import logging
import re

from algorithm.runs.faults import MAX_LINES, record_faults
from algorithm.training.progress import Counters

LOG = logging.getLogger("algorithm.adapters.somewhere")


def test_a_fault_is_logged_in_one_line_and_in_full_in_the_file(tmp_path):
    logged, counters = [], Counters(env_steps=1234)
    with record_faults(tmp_path / "faults.log", logged.append, counters):
        LOG.warning("the reward of\n lane 3 is NaN")
        counters.env_steps = 5678
        LOG.info("Traceback\n  of it")
    assert logged == [f"env step 1,234: the reward of lane 3 is NaN (details: {tmp_path / 'faults.log'})"]
    text = (tmp_path / "faults.log").read_text()
    assert "env step 1,234: the reward of\n lane 3" in text
    assert "env step 5,678: Traceback\n  of it" in text


def test_only_the_first_faults_are_logged(tmp_path):
    logged = []
    with record_faults(tmp_path / "faults.log", logged.append, Counters()):
        for number in range(100):
            LOG.warning(f"fault in line {number}")
    assert len(logged) == MAX_LINES + 1
    assert "faults.log" in logged[-1]
    assert "fault in line 99" in (tmp_path / "faults.log").read_text()


def test_text_that_cannot_be_encoded_is_escaped(tmp_path, monkeypatch):
    monkeypatch.setattr(logging.getLogger("algorithm"), "propagate", False)  # pytest-xdist cannot send such text
    logged = []

    def log(line):
        logged.append(line.encode("latin-1"))

    with record_faults(tmp_path / "faults.log", log, Counters()):
        LOG.warning("the key '\udc80' of Ω")
    assert logged == [f"env step 0: the key '\\udc80' of \\u03a9 (details: {tmp_path / 'faults.log'})".encode()]
    assert "the key '\\udc80' of Ω" in (tmp_path / "faults.log").read_text(encoding="utf-8")


def test_faults_of_one_kind_are_counted(tmp_path):
    logged = []
    with record_faults(tmp_path / "faults.log", logged.append, Counters()) as count:
        for number in range(120):
            LOG.warning(f"environment {number % 8} raised KeyError: {number * 0.5} (env.py, line 7)")
            if number == 50:
                LOG.warning("environment 3 raised KeyError: 1.0 (env.py, line 8)")
        assert count() == 121
    assert [line.partition(" raised ")[0] for line in logged] == [f"env step 0: environment {n}" for n in (0, 1, 3, 3)]
    assert [n for n, line in enumerate(logged) if "faults.log" in line] == [0]
    assert [n for n, line in enumerate(logged) if "line 8" in line] == [2]
    counts = [re.findall(r"\((\d+) faults of this kind so far\)", line) for line in logged]
    assert counts == [[], ["10"], [], ["100"]]


def test_handlers_are_removed_and_no_file_is_created_without_a_fault(tmp_path):
    log, logged = logging.getLogger("algorithm"), []
    before = log.level, list(log.handlers)
    with record_faults(tmp_path / "faults.log", logged.append, Counters()):
        pass
    LOG.warning("later")
    assert (log.level, log.handlers) == before
    assert not logged and not list(tmp_path.iterdir())


def test_faults_are_logged_if_the_file_cannot_be_written(tmp_path, capsys):
    logged = []
    with record_faults(tmp_path / "missing" / "faults.log", logged.append, Counters()):
        LOG.warning("the reward of lane 3 is NaN")
    assert len(logged) == 1
    assert capsys.readouterr().err == ""
