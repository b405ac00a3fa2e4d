"""What is brought is at every moment a beginning of what is there, and in the end the same."""

from nemo_gym.capture.store import CaptureStore
from nemo_gym.capture.writer import ShardWriter
from nemo_gym.launch.mirror import Mirror, Piece, names, pieces
from tests.capture.records import record


def brought(there, mirror, most=1 << 20):
    """One round; how many questions it took."""
    for asked in range(10_000):
        found = pieces(there, mirror.have, most)
        if not found:
            return asked
        for piece in found:
            mirror.put(piece)
    raise AssertionError("it never ends")


def test_a_file_that_grows_and_one_that_shrinks(tmp_path):
    there, mirror = tmp_path / "there", Mirror(tmp_path / "here")
    assert brought(there, mirror) == 0
    there.mkdir()
    log = there / "server.log"
    for said in (b"", b"one\n", b"x" * 10_000, "ä\n".encode()):
        with log.open("ab") as file:
            file.write(said)
        brought(there, mirror, most=777)
        assert (tmp_path / "here" / "server.log").read_bytes() == log.read_bytes()
    log.write_bytes(b"one")  # as a shard whose last batch could not be written
    assert brought(there, mirror) == 1
    assert (tmp_path / "here" / "server.log").read_bytes() == b"one"
    (there / "half.arrow.tmp").write_bytes(b"not yet")
    (there / "notes.txt").write_bytes(b"nobody's")
    assert brought(there, mirror) == 0


def test_a_sealed_shard_is_seen_whole_and_takes_its_streams_place(tmp_path):
    here = tmp_path / "here"
    mirror = Mirror(here)
    mirror.put(Piece("m-1-0.arrows", 0, 3, b"abc"))
    mirror.put(Piece("m-1-0.arrow", 0, 4, b"ab"))
    assert {path.name for path in here.iterdir()} == {"m-1-0.arrows", "m-1-0.arrow.part"}
    mirror.put(Piece("m-1-0.arrow", 0, 4, b"ab"))  # the same again
    mirror.put(Piece("m-1-0.arrow", 2, 4, b"cd"))
    assert {path.name: path.read_bytes() for path in here.iterdir()} == {"m-1-0.arrow": b"abcd"}


async def test_a_capture_is_readable_at_every_step(tmp_path):
    writer = ShardWriter(str(tmp_path / "there"), "policy_model", "run", "fsync")
    there, mirror = tmp_path / "there" / "run", Mirror(tmp_path / "here" / "run" / "node")
    for number in range(5):
        await writer.commit(record(rollout_id=f"r{number}"))
        await writer.seal(f"r{number}")
        brought(there, mirror, most=1000)
        store = CaptureStore(tmp_path / "here")
        assert store.rollouts() == [f"r{one}" for one in range(number + 1)]
        assert store.verify().problems == []
    writer.close()
    brought(there, mirror, most=1000)
    assert sorted(path.suffix for path in mirror.folder.iterdir()) == [".arrow", ".index"]
    report = CaptureStore(tmp_path / "here").verify()
    assert (report.ok, report.calls, report.open, report.unsealed) == (True, 5, [], [])


async def test_a_shard_without_a_call_is_no_more_than_it_is_there(tmp_path):
    writer = ShardWriter(str(tmp_path / "there"), "policy_model", "run", "fsync")
    there, mirror = tmp_path / "there" / "run", Mirror(tmp_path / "here")
    brought(there, mirror)
    assert len(list(mirror.folder.iterdir())) == 1
    writer.close()
    brought(there, mirror)
    mirror.only(names(there))
    assert list(mirror.folder.iterdir()) == []


def test_a_log_goes_on_from_an_earlier_one(tmp_path):
    there, here = tmp_path / "there", tmp_path / "here"
    for folder in (there, here):
        folder.mkdir()
    (here / "env.log").write_text("yesterday\n")
    (there / "env.log").write_text("today\n")
    brought(there, Mirror(here))
    assert (here / "env.log").read_text() == "yesterday\ntoday\n"
