import re

import pytest

from nemo_gym.export.ledger import Ledger
from nemo_gym.export.options import ExportError
from nemo_gym.rollouts.journal import Journal, JournalError, read
from nemo_gym.rollouts.outcome import Outcome, Ticket


def test_what_a_model_wrote_is_read_as_it_was_written(tmp_path):
    """Half a character, and a number that no float holds: neither may keep a job from being resumed."""
    said = {"text": "half \ud800 a character \U0001f600", "number": 2**80 + 1}
    journal = Journal(tmp_path)
    ticket = Ticket(0, 0, "run-0-0", "agent", {"responses_create_params": {"input": "hi"}})
    journal.add(Outcome(ticket, 0.0, 1.0, {"reward": 1.0} | said))
    journal.close()
    (row,) = read(tmp_path / "rollouts.jsonl")
    assert {name: row[name] for name in said} == said
    again = Journal(tmp_path)
    assert (0, 0, "agent") in again.done
    again.close()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"\x89PNG\n", "expected text in UTF-8, found the byte 0x89"),
        ("{}\n".encode("utf-16"), "expected text in UTF-8, this is UTF-16"),
    ],
)
def test_a_file_that_is_none_is_told_by_what_it_is(tmp_path, line, words):
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(line + b"\n")
    with pytest.raises(JournalError, match=re.escape(f"{path}:1: not JSON: {words}")):
        list(read(path))
    with pytest.raises(ExportError, match=re.escape(f"{path}:1: no rollout of a job: {words}")):
        Ledger(tmp_path / "ledger.sqlite").read_results(path)


def test_so_is_a_line_that_lacks_something(tmp_path):
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(b'{"_ng_task_index": 0}\n')
    with pytest.raises(JournalError, match="no rollout of a job: no field '_ng_rollout_i"):
        Journal(tmp_path)
    with pytest.raises(ExportError, match="no rollout of a job: no field '_ng_rollout_id'"):
        Ledger(tmp_path / "ledger.sqlite").read_results(path)
