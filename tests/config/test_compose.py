"""What is merged wins in the stated order, every key knows its line, and nothing the user wrote raises."""

import textwrap

import pytest

from nemo_gym.config import paths
from nemo_gym.config.compose import compose


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder, name, text):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(textwrap.dedent(text))


def said(composed):
    return [str(problem) for problem in composed.problems]


def test_files_then_env_then_command_line(folder):
    write(folder, "a.yaml", "x: {one: 1, two: 1, three: 1, four: 1}\n")
    write(folder, "b.yaml", "x: {two: 2, three: 2, four: 2}\n")
    write(folder, "env.yaml", "x:\n  three: 3\n  four: 3\n")
    composed = compose(["+config_paths=[a.yaml,b.yaml]", "++x.four=4"])
    assert composed.config == {"x": {"one": 1, "two": 2, "three": 3, "four": 4}}
    assert composed.origins[("x", "one")] == "a.yaml:1"
    assert composed.origins[("x", "two")] == "b.yaml:1"
    assert composed.origins[("x", "three")] == "env.yaml:2"
    assert composed.origins[("x", "four")] == "command line"
    assert composed.problems == []


def test_imports_come_first_and_may_lie_beside(folder):
    write(folder, "configs/base.yaml", "x: {one: 1, two: 1}\n")
    write(folder, "configs/top.yaml", "config_paths: [base.yaml]\nx: {two: 2}\n")
    composed = compose(["+config_paths=[configs/top.yaml]"])
    assert composed.config == {"x": {"one": 1, "two": 2}}
    assert composed.origins[("x", "one")] == "configs/base.yaml:1"


def test_import_circle_is_told(folder):
    write(folder, "a.yaml", "config_paths: [b.yaml]\n")
    write(folder, "b.yaml", "config_paths: [a.yaml]\n")
    assert said(compose(["+config_paths=[a.yaml]"])) == [
        "b.yaml:1: config_paths: files import one another: a.yaml -> b.yaml -> a.yaml"
    ]


def test_references(folder, monkeypatch):
    monkeypatch.setenv("NG_TEST_KEY", "k-123456")
    write(
        folder, "a.yaml", "url: http://h/v1\nm:\n  base_url: ${url}\n  key: ${oc.env:NG_TEST_KEY}\n  n: ${.base_url}\n"
    )
    composed = compose(["+config_paths=[a.yaml]"])
    assert composed.config["m"] == {"base_url": "http://h/v1", "key": "k-123456", "n": "http://h/v1"}


def test_everything_unresolved_is_told_at_once(folder, monkeypatch):
    monkeypatch.delenv("NG_NOT_SET", raising=False)
    write(folder, "a.yaml", "m:\n  a: ${nowhere}\n  b: ${oc.env:NG_NOT_SET}\n  c: ???\n  d: [1, '???']\n")
    composed = compose(["+config_paths=[a.yaml]"])
    assert said(composed) == [
        "a.yaml:2: m.a: ${nowhere} has no value: set nowhere in env.yaml or pass ++nowhere=…",
        "a.yaml:3: m.b: the environment variable NG_NOT_SET is not set (${oc.env:NG_NOT_SET})",
        "a.yaml:4: m.c: is required: it is still '???'",
        "a.yaml:5: m.d.1: is required: it is still '???'",
    ]
    assert composed.complete


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: [1, 2\nc: 3\n", "bad.yaml:3: not YAML: expected ',' or ']', but got ':'"),
        ("a:\n\tb: 1\n", "bad.yaml:2: not YAML: found character '\\t' that cannot start any token"),
        ("a: 1\nb: 2\na: 3\n", "bad.yaml:3: key 'a' is written twice, first on line 1"),
        ("- 1\n- 2\n", "bad.yaml:1: expected a mapping of keys at the top, got list"),
        ("a: {b: ${c}\n", "bad.yaml:1: not YAML: expected ',' or '}', but got"),
        ("a: 1\n".encode("utf-16"), "bad.yaml: expected text in UTF-8, this is UTF-16"),
        ("a: 1\nb: ä\n".encode("latin-1"), "bad.yaml:2: expected text in UTF-8, found the byte 0xe4"),
        ("a: 1\nb: \0\n", "bad.yaml:2: expected text, found the control character 0x00"),
        ("a: " + "[" * 5000, "bad.yaml: is nested too deeply"),
    ],
    ids=range(9),
)
def test_unreadable_file_names_its_line(folder, text, message):
    (folder / "bad.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    composed = compose(["+config_paths=[bad.yaml]"])
    assert len(said(composed)) == 1
    assert said(composed)[0].startswith(message)
    assert not composed.complete


def test_missing_file_and_bad_argument(folder):
    write(folder, "configs/quickstart.yaml", "a: 1\n")
    composed = compose(["+config_paths=[configs/quikstart.yaml]", "a b c", "~x"])
    assert said(composed)[0].startswith("command line: a b c: expected key=value")
    assert said(composed)[1] == (
        "command line: config_paths: expected a file, 'configs/quikstart.yaml' does not exist; "
        "did you mean 'quickstart.yaml'?"
    )
    assert said(composed)[2].startswith("command line: ~x: there is no such key to delete")


def test_what_is_no_file_is_told_by_what_it_is(folder):
    (folder / "configs").mkdir()
    assert said(compose(["+config_paths=[configs,'']"])) == [
        "command line: config_paths: expected a file, 'configs' is a folder",
        "command line: config_paths: expected a file, '' is no path",
    ]


@pytest.mark.parametrize("text", ["a:\r\n  b: 1\r\nc: 'x'\r\n", "\ufeffa:\n  b: 1\nc: x\n"])
def test_line_ends_of_windows_and_its_mark_say_nothing(folder, text):
    (folder / "a.yaml").write_bytes(text.encode())
    assert compose(["+config_paths=[a.yaml]"]).config == {"a": {"b": 1}, "c": "x"}


def test_config_paths_must_be_a_list(folder):
    assert said(compose(["+config_paths=a.yaml"])) == [
        "command line: config_paths: expected a list of files, such as [configs/a.yaml], got 'a.yaml'"
    ]


def test_values_are_what_people_mean(folder):
    write(folder, "a.yaml", "lr: 1e-4\nday: 2024-01-01\nbig: 123456789012345678901234567890\nnone: null\non_: yes\n")
    assert compose(["+config_paths=[a.yaml]"]).config == {
        "lr": 1e-4,
        "day": "2024-01-01",
        "big": 123456789012345678901234567890,
        "none": None,
        "on_": True,
    }


def test_delete(folder):
    write(folder, "a.yaml", "job: {agent: a}\nx: {y: 1, z: 2}\n")
    assert compose(["+config_paths=[a.yaml]", "~job", "~x.y"]).config == {"x": {"z": 2}}


def test_instances_and_what_is_wrong_with_them(folder):
    write(
        folder,
        "a.yaml",
        """\
        good: {resources_servers: {env: {entrypoint: app.py}}}
        two:
          responses_api_models:
            vllm_model: {}
            local_vllm_model: {}
        mixed: {resources_servers: {env: {}}, responses_api_models: {m: {}}}
        empty: {resources_servers: {env: }}
        """,
    )
    composed = compose(["+config_paths=[a.yaml]"])
    assert [(i.name, i.kind, i.implementation, i.settings) for i in composed.instances] == [
        ("good", "resources_servers", "env", {"entrypoint": "app.py"}),
        ("empty", "resources_servers", "env", {}),
    ]
    assert said(composed) == [
        "a.yaml:3: two.responses_api_models: expected one implementation, got vllm_model, local_vllm_model",
        "a.yaml:6: mixed: expected responses_api_models alone, there is also resources_servers",
    ]


def test_digest_follows_the_servers_only(folder, monkeypatch):
    write(folder, "a.yaml", "m: {responses_api_models: {v: {model: x, api_key: '${oc.env:NG_K}'}}}\njob: {agent: a}\n")
    monkeypatch.setenv("NG_K", "one-secret")
    first = compose(["+config_paths=[a.yaml]"])
    monkeypatch.setenv("NG_K", "another-secret")
    again = compose(["+config_paths=[a.yaml]", "++job.resume=true", "++m.responses_api_models.v.port=8001"])
    other = compose(["+config_paths=[a.yaml]", "++m.responses_api_models.v.model=y"])
    assert first.digest() == again.digest() != other.digest()


def test_job_and_capture_paths(folder):
    composed = compose(["++job.agent=a", "++job.input=in.jsonl", "++job.output=/somewhere/out"])
    assert composed.capture().dir == "/somewhere/out/captures"
    assert str(composed.logs()) == "/somewhere/out/logs"
    assert compose([]).capture().dir.endswith("results/captures")
    for said, means in (("copies", str(paths.absolute("copies"))), ("s3://bucket/copies", "s3://bucket/copies")):
        assert compose([f"++capture.upload={said}"]).capture().upload == means


def test_what_several_import_is_merged_once_and_below_the_first(folder):
    (folder / "common.yaml").write_text("who: common\nwhere: common\nlast: common\n")
    (folder / "first.yaml").write_text("config_paths: [common.yaml]\nwho: first\n")
    (folder / "second.yaml").write_text("config_paths: [common.yaml]\nwhere: second\n")
    (folder / "top.yaml").write_text("config_paths: [first.yaml, second.yaml]\n")
    composed = compose(["+config_paths=[top.yaml]"], env_file=None)
    assert {key: composed.config[key] for key in ("who", "where", "last")} == {
        "who": "first", "where": "second", "last": "common"
    }  # fmt: skip
    named_too = compose(["+config_paths=[first.yaml,common.yaml]"], env_file=None)
    assert named_too.config["who"] == "common"  # named after it on the command line, so it wins


def test_an_instance_whose_implementation_was_inherited_is_none(folder):
    (folder / "moved.yaml").write_text(
        "a: {resources_servers: {mcqa: {entrypoint: app.py, size: 1}}}\n"
        "b: {resources_servers: {mcqa: {_inherit_from: a.resources_servers.mcqa, size: 2}}}\n"
    )
    composed = compose(["+config_paths=[moved.yaml]"], env_file=None)
    assert composed.problems == []
    assert [(one.name, one.settings["size"]) for one in composed.instances] == [("b", 2)]
    (folder / "moved.yaml").write_text("a: {resources_servers: {}}\n")
    faults = compose(["+config_paths=[moved.yaml]"], env_file=None).problems
    assert [str(fault) for fault in faults] == [
        "moved.yaml:1: a.resources_servers: expected one implementation, got none"
    ]
