"""Every fault is found at once, without starting anything, and its message names key, place and what was expected."""

import socket
import sys

import pytest

from nemo_gym.config import paths
from nemo_gym.config.compose import compose
from nemo_gym.config.problems import find_problems
from tests import project


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(project.make(tmp_path))
    return tmp_path


ENV = "env.resources_servers.tiny"
MODEL = "policy_model.responses_api_models.local_tiny"


def said(*overrides: str) -> list[str]:
    return [str(problem) for problem in find_problems(compose(["+config_paths=[run.yaml]", *overrides]))]


def test_an_example_that_is_fetched_first_need_not_be_there(folder):
    said_of_it = "name: x, type: example, jsonl_fpath: no.jsonl, gitlab_identifier: {dataset_name: x}"
    assert said(f"++{ENV}.datasets=[{{{said_of_it}}}]") == []


def test_a_kind_of_which_none_is_configured_is_named(folder):
    found = find_problems(compose(["+config_paths=[run.yaml]", f"~{MODEL.partition('.')[0]}"]))
    assert [str(problem).partition(": ")[2] for problem in found if "no server" in problem.message] == [
        f"{ENV}.model_server.name: there is no server 'policy_model' of responses_api_models; "
        "none is configured: responses_api_models/*/configs has some"
    ]


def test_the_whole_is_not_judged_before_each_part_has_its_value(folder, monkeypatch):
    monkeypatch.chdir(paths.PARENT_DIR)
    file = "responses_api_models/inference_provider/configs/inference_provider.yaml"
    found = [
        problem.key.rpartition(".")[2] for problem in find_problems(compose([f"+config_paths=[{file}]"], None, None))
    ]
    assert found == ["provider", "api_key", "model"]


def test_a_good_configuration_has_none(folder):
    assert said() == []


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (f"++{ENV}.siez=2", f"command line: {ENV}.siez: is not a known key; did you mean 'size'?"),
        (f"++{ENV}.size=abc", f"command line: {ENV}.size: expected a whole number, got 'abc'"),
        (f"++{ENV}.size=0", f"command line: {ENV}.size: expected at least 1, got 0"),
        (f"++{ENV}.mode=[1]", f"command line: {ENV}.mode: expected text, got [1]"),
        (f"++{ENV}.api_key=[1]", f"command line: {ENV}.api_key: expected text"),
        (f"++{ENV}.domain=maths", f"command line: {ENV}.domain: expected 'math', 'coding', "),
        (f"~{MODEL}.model", f"run.yaml:3: {MODEL}.model: is required"),
        (f"++{MODEL}.base_url=5", f"command line: {MODEL}.base_url: expected a URL or a list, got 5"),
        (f"++{MODEL}.base_url=[x]", f"command line: {MODEL}.base_url.0: expected a URL that begins with http:// or"),
        (f"++{MODEL}.entrypoint=ap.py", f"command line: {MODEL}.entrypoint: expected a file in responses_api_models/"),
        (
            f"++{MODEL}.model=./wieghts",
            f"command line: {MODEL}.model: expected a model's folder, './wieghts' does not exist; did you mean 'w",
        ),
        (f"++{MODEL}.model=/no/such/folder", f"command line: {MODEL}.model: expected a model's folder, '/no/such/"),
        (f"++{MODEL}.model=run.yaml", f"command line: {MODEL}.model: expected a model's folder, 'run.yaml' is a file"),
        (f"++{MODEL}.model=resources_servers", f"command line: {MODEL}.model: expected a model's folder, 'resources"),
        (
            f"++{ENV}.model_server.name=polcy_model",
            f"command line: {ENV}.model_server.name: there is no server 'polcy_model' of responses_api_models; "
            "did you mean 'policy_model'?",
        ),
        (
            f"++{ENV}.model_server.name=env",
            f"command line: {ENV}.model_server.name: expected one of responses_api_models, 'env' is one of",
        ),
        (
            f"++{MODEL}.host=0.0.0.0",
            f"command line: {MODEL}.host: 0.0.0.0 can be reached from other machines: expected",
        ),
        (f"++{ENV}.port=70000", f"command line: {ENV}.port: expected at most 65535, got 70000"),
        (
            f"++{ENV}.datasets=[{{name: x, type: example, jsonl_fpath: run.jsonl}}]",
            f"command line: {ENV}.datasets.0.jsonl_fpath: expected a file, 'run.jsonl' does not exist",
        ),
        ("++capture.durability=sync", "command line: capture.durability: expected 'fsync', 'flush' or 'none'"),
        (f"++{ENV}.datasets=5", f"command line: {ENV}.datasets: expected a list, got 5"),
        ("++capture.dir=/dev/null/x", "command line: capture.dir: expected a folder, /dev/null is a file"),
        ("++capture.dir=/proc/x", "command line: capture.dir: expected a folder that can be written, /proc cannot: "),
        ("++capture.dir=''", "command line: capture.dir: expected a path, got ''"),
        ("++capture.upload=' '", "command line: capture.upload: expected a path, got ' '"),
        ("++ray.node_dir=''", "command line: ray.node_dir: expected a path, got ''"),
        ("++job.output=''", "command line: job.output: expected a path, got ''"),
        ("++job.output=.jsonl", "command line: job.output: expected a path, got ''"),
        (
            f"++{ENV}.datasets=[{{name: x, type: example, jsonl_fpath: ''}}]",
            f"command line: {ENV}.datasets.0.jsonl_fpath: expected a path, got ''",
        ),
        ("++captur.dir=x", "command line: captur: is used by nothing; did you mean 'capture'?"),
        ("++x.response_api_models.y=1", "command line: x.response_api_models: is no kind of server; did you mean 'res"),
        ("++x.resources_servers.tinny.mode=a", "command line: x.resources_servers.tinny: there is no folder resources"),
        ("++job.agent=env", "command line: job.agent: expected one of responses_api_agents, 'env' is one of"),
        ("++job.repeats=0", "command line: job.repeats: expected at least 1, got 0"),
        ("++job.input=no.jsonl", "command line: job.input: expected a file, 'no.jsonl' does not exist"),
        ("++job.repeets=3", "command line: job.repeets: is not a known key; did you mean 'repeats'?"),
        ("++job={agent: a, agent_name: b}", "command line: job: agent and agent_name are two names of one key"),
    ],
)
def test_each_fault(folder, override, message):
    assert any(line.startswith(message) for line in said(override)), said(override)


def test_exposure_with_keys_is_fine(folder):
    assert not any(".host:" in line for line in said(f"++{MODEL}.host=0.0.0.0", f"++{MODEL}.api_keys=[k]"))


def test_all_at_once(folder):
    found = said(f"++{ENV}.siez=2", f"++{ENV}.size=abc", f"++{MODEL}.model=/no", "++job.repeets=3", "++y=${nope}")
    for part in (
        "siez",
        "size",
        "local_tiny.model",
        "job.repeets",
        "job.output: is required",
        "y: ${nope} has no value",
    ):
        assert any(part in line for line in found), (part, found)


def test_secrets_are_not_shown(folder):
    (line,) = said("++env_key={a: very-secret}")
    assert "very-secret" not in line


def test_unresolved_keys_are_told_once(folder):
    assert said("~env_key") == [
        f"run.yaml:12: {ENV}.api_key: ${{env_key}} has no value: set env_key in env.yaml or pass ++env_key=…"
    ]


def test_port_in_use_and_given_twice(folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert said(f"++{ENV}.port={port}") == [
            f"command line: {ENV}.port: expected a free port, {port} on 127.0.0.1 is in use"
        ]
    assert said(f"++{ENV}.port={port}", f"++{MODEL}.port={port}") == [
        f"command line: {ENV}.port: expected a free port, policy_model is given {port} too"
    ]
    assert said(f"++{ENV}.host=no.such.host.invalid", f"++{ENV}.port=8001")[0].endswith("is not known")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_module\n", "needs the module no_such_module, which is not installed"),
        ("x = = 1\n", "resources_servers/tiny/app.py cannot be loaded: SyntaxError"),
        ("raise SystemExit(3)\n", "resources_servers/tiny/app.py cannot be loaded: SystemExit: 3"),
        ("x = 1\n", "resources_servers/tiny/app.py has no server class"),
    ],
)
def test_entrypoint_that_cannot_be_loaded(folder, source, message):
    (folder / "resources_servers/tiny/app.py").write_text(source)
    (line,) = said()
    assert line.startswith(f"run.yaml:9: {ENV}.entrypoint: {message}")


def test_a_module_that_nothing_will_install_is_named(folder):
    (folder / "resources_servers/tiny/app.py").write_text("import no_such_module\n")
    (fault,) = said()
    assert fault.endswith("needs the module no_such_module, which is not installed")
    (folder / "resources_servers/tiny/requirements.txt").write_text("no-such-module\n")  # it gets its own environment
    assert said() == []


@pytest.mark.parametrize("source", ["from msgspec import run\n", "raise RuntimeError('git is not here')\n"])
def test_what_an_environment_of_its_own_may_mend_is_no_fault(folder, source):
    (folder / "resources_servers/tiny/app.py").write_text(source)
    (folder / "resources_servers/tiny/pyproject.toml").write_text('[project]\ndependencies = ["no-such-module"]\n')
    assert said() == []
    (folder / "resources_servers/tiny/app.py").write_text("def broken(:\n")
    assert "SyntaxError" in said()[0]


def test_servers_with_modules_of_one_name_beside_them(folder):
    """Each gets its own `helpers`, as it does when it runs."""
    for name in ("one", "two"):
        place = folder / "resources_servers" / name
        place.mkdir()
        (place / "helpers.py").write_text(f"{name.upper()} = 1\n")
        source = (folder / "resources_servers/tiny/app.py").read_text()
        (place / "app.py").write_text(f"from helpers import {name.upper()}\n{source}")
    (folder / "both.yaml").write_text(
        "".join(f"{name}: {{resources_servers: {{{name}: {{entrypoint: app.py}}}}}}\n" for name in ("one", "two"))
    )
    assert find_problems(compose(["+config_paths=[both.yaml]"])) == []
    assert "helpers" not in sys.modules


def test_nothing_configured(folder):
    (problem,) = find_problems(compose([]))
    assert "nothing is configured" in str(problem)


ON_CLUSTER = "++ray.address=10.0.0.1:6379"


def test_where_servers_are_placed(folder):
    assert said(ON_CLUSTER, f"++{ENV}.ray.node=abc", f"++{ENV}.ray.resources.big=0.5") == []
    assert said("++ray.adress=auto") == ["command line: ray.adress: is not a known key; did you mean 'address'?"]
    assert said("++ray.address=here") == ["command line: ray.address: expected auto, local or host:port, got 'here'"]
    assert said("++ray.files=copied") == [
        "command line: ray.files: expected 'auto', 'shared' or 'brought', got 'copied'"
    ]
    assert said(f"++{ENV}.ray.num_cpus=-1") == [f"command line: {ENV}.ray.num_cpus: expected at least 0.0, got -1"]
    assert said(f"++{ENV}.ray.nodes=a")[0].startswith(f"command line: {ENV}.ray.nodes: is not a known key")


def test_on_a_cluster_ports_are_not_those_of_this_machine(folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = f"++{ENV}.port={taken.getsockname()[1]}"
        assert len(said(port)) == 1
        assert said(port, ON_CLUSTER) == []


def test_where_a_server_runs_is_no_part_of_what_a_job_is(folder):
    plain, placed = (
        compose(["+config_paths=[run.yaml]", *more]) for more in ([], [ON_CLUSTER, f"++{ENV}.ray.num_cpus=2"])
    )
    assert plain.digest() == placed.digest()
    assert plain.cluster().joined is False
    assert placed.cluster().joined is True


def test_a_server_may_lie_deeper_and_import_what_is_lazy(folder):
    """As `responses_api_agents/conversational_tool_use/simulation` does; a lazy module gives what it has not."""
    deep = folder / "resources_servers" / "family" / "one"
    deep.mkdir(parents=True)
    (folder / "resources_servers" / "family" / "told.py").write_text("LEVEL = 2\n")
    (folder / "lazy_thing.py").write_text(
        "import sys, types\n"
        "class Lazy(types.ModuleType):\n"
        "    def __getattr__(self, name): raise ModuleNotFoundError('No module named torchvision')\n"
        "sys.modules['lazy_inner'] = Lazy('lazy_inner')\n"
    )
    source = (folder / "resources_servers/tiny/app.py").read_text()
    imports = "from resources_servers.family.told import LEVEL\nimport lazy_thing\n"
    (deep / "app.py").write_text(imports + source)
    (folder / "run.yaml").write_text("deep: {resources_servers: {family/one: {entrypoint: app.py}}}\n")
    assert said() == []
    assert paths.root_of(deep / "app.py") == folder
    for name in ("lazy_thing", "lazy_inner", "resources_servers.family", "resources_servers.family.told"):
        sys.modules.pop(name, None)
