"""Why a start failed, in few words; the logs are those that vLLM and Ray write."""

import pytest

from nemo_gym.engines.deployment import _no_room
from nemo_gym.engines.placement import placement
from nemo_gym.engines.start import ErrorLog, StartError, cause, explained, said, say

ACTOR_DIED = """\
The actor died because of an error raised in its creation task, \x1b[36mray::VllmActor.__init__()\x1b[39m (pid=7)
  File "/x/vllm_actor.py", line 88, in __init__
    raise StartError(log.cause() or str(error)) from None
nemo_gym.engines.start.StartError: ValueError: To serve at least one request with the model's max seq len (40960), \
(4.38 GiB KV cache is needed, which is larger than the available KV cache memory (1.00 GiB).
"""
ENGINE_LOG = """\
(EngineCore pid=41) INFO 11-30 18:45:03 [core.py:101] Initializing a V1 LLM engine
(EngineCore pid=41) ERROR 11-30 18:45:09 [core.py:1120] EngineCore failed to start.
(EngineCore pid=41) ERROR 11-30 18:45:09 [core.py:1120] Traceback (most recent call last):
(EngineCore pid=41) ERROR 11-30 18:45:09 [core.py:1120]   File "/x/core.py", line 9, in run
(EngineCore pid=41) ERROR 11-30 18:45:09 [core.py:1120] torch.OutOfMemoryError: CUDA out of memory. Tried 2.00 GiB.
Traceback (most recent call last):
  File "/x/async_llm.py", line 3, in __init__
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""
PYDANTIC = """\
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, The checkpoint you are trying to load has model type `foo` [type=value_error]
    For further information visit https://errors.pydantic.dev/2.12/v/value_error
"""


def test_the_first_process_that_knew_why_is_quoted():
    assert cause(ENGINE_LOG) == "OutOfMemoryError: CUDA out of memory. Tried 2.00 GiB."
    assert cause(PYDANTIC).splitlines() == [
        "ValidationError: 1 validation error for ModelConfig",
        "Value error, The checkpoint you are trying to load has model type `foo` [type=value_error]",
    ]
    assert cause("all is well\n") is None


@pytest.mark.parametrize(
    ("text", "first", "hint"),
    [
        (ACTOR_DIED, "ValueError: To serve at least one request", "memory: engine_args.max_model_len"),
        ("torch.OutOfMemoryError: CUDA out of memory", "OutOfMemoryError: CUDA", "memory: "),
        ("RuntimeError: No CUDA GPUs are available", "RuntimeError: No CUDA", "no GPU: num_gpus: 0"),
        ("RuntimeError: Cannot find any model weights with `/x`", "RuntimeError: Cannot", "model: expected a folder"),
        ("ValueError: engine_args.foo: vLLM has no such argument", "ValueError: engine_args.foo", None),
        ("something else\nthe last line", "the last line", None),
        ("", "Exception", None),
    ],
)
def test_a_failure_says_why_and_what_may_be_done(text, first, hint):
    lines = explained(Exception(text)).splitlines()
    assert lines[0].startswith(first)
    assert len(lines) == (2 if hint else 1)
    if hint:
        assert lines[1].startswith(hint)


def test_what_an_actor_passes_on_comes_out_whole():
    told = f"Traceback:\n  File x\nnemo_gym.engines.start.StartError: {StartError(cause(PYDANTIC))}\n"
    assert explained(Exception(told)) == cause(PYDANTIC)


def test_it_is_ten_lines_at_most():
    many = "ValueError: \n" + "".join(f"  line {number} {'x' * 9999}\n" for number in range(99))
    lines = explained(Exception(many)).splitlines()
    assert 1 < len(lines) <= 10
    assert max(map(len, lines)) <= 400


def test_a_ray_without_room_says_what_it_has():
    words = _no_room("vllm-1", placement(2, 1, 1.0), {"CPU": 8.0}).splitlines()
    assert words[0].startswith("Ray has no room for vllm-1: it wants {'CPU': 1.0, 'GPU': 1.0}, {'CPU': 1.0")
    assert words[0].endswith("(pack), and all of Ray has CPU 8, GPU 0")
    assert words[1].startswith("no GPU")
    assert len(_no_room("vllm-1", placement(1, 1, 0), {"CPU": 0.0}).splitlines()) == 1


def test_only_what_is_written_from_now_on_counts(tmp_path):
    log = ErrorLog()
    log._path, log._start = tmp_path / "err", 0
    log._path.write_text("ValueError: before\n")
    log._start = log._path.stat().st_size
    assert log.cause() is None
    with log._path.open("a") as file:
        file.write("KeyError: 'after'\n")
    assert log.cause() == "KeyError: 'after'"
    log._path.unlink()
    assert log.cause() is None


def test_steps_without_a_ray_hurt_nobody(monkeypatch):
    from ray.experimental import internal_kv

    def none(*args, **kwargs):
        raise AssertionError("no Ray")

    monkeypatch.setattr(internal_kv, "_internal_kv_put", none)
    monkeypatch.setattr(internal_kv, "_internal_kv_get", none)
    say("vllm-0", "a step")
    assert said("vllm-0") == "its process is being started"
