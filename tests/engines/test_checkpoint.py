"""What is refused before it is loaded, and in which words."""

import json

import pytest

np = pytest.importorskip("numpy")
safetensors = pytest.importorskip("safetensors.numpy")

from nemo_gym.engines.checkpoint import INDEX, BadCheckpoint, check, read  # noqa: E402

MODEL = {"embed.weight": np.ones((4, 2), np.float32), "norm.weight": np.ones(2, np.float32)}


def folder(path, tensors, name="model.safetensors"):
    path.mkdir(exist_ok=True)
    safetensors.save_file(tensors, path / name)
    return path


@pytest.fixture
def expected(tmp_path):
    return read(folder(tmp_path / "own", MODEL)).tensors


def refusal(path, expected, tied=False):
    with pytest.raises(BadCheckpoint) as refused:
        check(read(path).tensors, expected, tied=tied)
    return str(refused.value)


def test_the_same_tensors_in_other_files_and_float_formats_are_good(tmp_path, expected):
    half = {name: one.astype(np.float16) for name, one in MODEL.items()}
    check(read(folder(tmp_path / "half", half)).tensors, expected, tied=False)
    parts = tmp_path / "parts"
    folder(parts, {"embed.weight": MODEL["embed.weight"]}, "a.safetensors")
    folder(parts, {"norm.weight": MODEL["norm.weight"]}, "b.safetensors")
    check(read(parts).tensors, expected, tied=False)
    folder(parts, {"left over": np.ones(1, np.float32)}, "c.safetensors")
    (parts / INDEX).write_text(
        json.dumps({"weight_map": {"embed.weight": "a.safetensors", "norm.weight": "b.safetensors"}})
    )
    check(read(parts).tensors, expected, tied=False)  # the index says which files count


def test_a_tied_output_layer_may_be_written_or_not(tmp_path, expected):
    both = folder(tmp_path / "both", MODEL | {"lm_head.weight": MODEL["embed.weight"]})
    check(read(both).tensors, expected, tied=True)
    assert refusal(both, expected) == "tensors that the model does not have: lm_head.weight"


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"embed.weight": MODEL["embed.weight"]}, "tensors of the model are missing: norm.weight"),
        (MODEL | {"norm.weight": np.ones(3, np.float32)}, "wrong shapes: norm.weight [3] instead of [2]"),
        (MODEL | {"norm.weight": np.ones(2, np.int32)}, "wrong number formats: norm.weight I32 instead of F32"),
        (
            MODEL | {f"x{n}": np.ones(1, np.float32) for n in range(5)},
            "tensors that the model does not have: x0, x1, x2 and 2 more",
        ),
    ],
)
def test_what_is_another_model_is_named(tmp_path, expected, tensors, words):
    assert refusal(folder(tmp_path / "other", tensors), expected) == words


def test_what_is_no_checkpoint_is_told(tmp_path, expected):
    assert refusal(tmp_path / "nowhere", expected) == "there is no such folder"
    file = folder(tmp_path / "one", MODEL) / "model.safetensors"
    assert refusal(file, expected) == "it is a file; expected the folder that it is in"
    (tmp_path / "empty").mkdir()
    assert refusal(tmp_path / "empty", expected) == "there is no *.safetensors in it"
    (tmp_path / "empty" / INDEX).write_text('{"weight_map": {"a": "gone.safetensors"}}')
    assert refusal(tmp_path / "empty", expected) == f"{INDEX} names files that are not there: gone.safetensors"
    (tmp_path / "empty" / INDEX).write_text("[]")
    assert refusal(tmp_path / "empty", expected) == f"{INDEX} is not readable"


def test_any_cut_of_a_file_is_told(tmp_path, expected):
    file = folder(tmp_path / "cut", MODEL) / "model.safetensors"
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        assert refusal(tmp_path / "cut", expected).startswith("model.safetensors is no")
    for wrong in (b"\xff" * 64, b"\x02\0\0\0\0\0\0\0[]", b"\x08\0\0\0\0\0\0\0" + b'{"a": 1}'):
        file.write_bytes(wrong)
        assert refusal(tmp_path / "cut", expected).startswith("model.safetensors is no safetensors file")


def test_a_change_of_a_file_is_seen(tmp_path):
    path = folder(tmp_path / "own", MODEL)
    stamp = read(path).stamp
    assert read(path).stamp == stamp
    folder(path, MODEL | {"more": np.ones(9, np.float32)})
    assert read(path).stamp != stamp
