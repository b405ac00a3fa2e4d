from nemo_gym.rollouts.journal import Journal, read
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
