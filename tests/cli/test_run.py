"""`ng_run` from outside: what is wrong ends it at once, with one message and 2."""

import os
import signal
import socket
import time

import psutil
import pytest

from nemo_gym.cli import run
from tests.project import World, command_of, left, make

ENV = "env.resources_servers.tiny"
MODEL = "policy_model.responses_api_models.local_tiny"


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    made.end()


# What is measured is the command's own work: on a machine that others use, the clock says little.
def cpu_seconds() -> float:
    used = os.times()
    return used.children_user + used.children_system


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([f"++{ENV}.siez=2"], f"command line: {ENV}.siez: is not a known key; did you mean 'size'?\n"),
        ([f"++{ENV}.size=big"], f"command line: {ENV}.size: expected a whole number, got 'big'\n"),
        ([f"++{MODEL}.model=/no/such"], f"command line: {MODEL}.model: expected a model's folder, '/no/such' does not"),
        ([f"++{ENV}.entrypoint=no.py"], f"command line: {ENV}.entrypoint: expected a file in resources_servers/tiny"),
        (["+config_paths=[no.yaml]"], "command line: config_paths: expected a file, 'no.yaml' does not exist"),
        ([f"++{ENV}.model_server.name=x"], f"command line: {ENV}.model_server.name: there is no server 'x'"),
        (["++job={agent: env, input: no.jsonl, output: out}"], "command line: job.input: expected a file, 'no.jsonl'"),
    ],
)
def test_faults_end_it_with_2(tmp_path, monkeypatch, capsys, args, message):
    monkeypatch.chdir(make(tmp_path))
    assert run.main(["+config_paths=[run.yaml]", *args]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert out == ""
    assert not (tmp_path / "out").exists()


def test_faults_end_it_at_once(world):
    before = cpu_seconds()
    code, out, err = world.run(f"++{ENV}.siez=2")
    assert (code, out) == (2, "")
    assert err == f"command line: {ENV}.siez: is not a known key; did you mean 'size'?\n"
    assert cpu_seconds() - before < 4


def test_yaml_fault_names_the_line(world):
    (world.folder / "run.yaml").write_text("a: 1\nb: [1,\n2: {c: 2}\n")
    code, _, err = world.run()
    assert code == 2
    assert err == (
        "run.yaml:4: not YAML: expected ',' or ']', but got '<stream end>' "
        "(while parsing a flow sequence that begins on line 2), column 1\n"
    )


def test_port_in_use(world):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, err = world.run(f"++{ENV}.port={port}")
    assert (code, err) == (2, f"command line: {ENV}.port: expected a free port, {port} on 127.0.0.1 is in use\n")


def test_nothing_to_run(world):
    code, _, err = world.run(config=False)
    assert code == 2
    assert "nothing is configured" in err


def test_server_that_dies_at_start(world):
    code, out, err = world.run(f"++{ENV}.mode=die")
    assert code == 1
    assert "env: ended with status 1" in out
    assert "RuntimeError: no such thing as a tiny server" in out
    assert "its log: " in out
    assert "Traceback" not in err
    assert left(world.folder) == []


@pytest.mark.ci
def test_ctrl_c_once_more_ends_it_at_once_and_leaves_nothing(world):
    process = world.start("run", "+config_paths=[run.yaml]")
    world.until_up(process)
    family = psutil.Process(process.pid).children(recursive=True)
    keeper = next(one for one in family if "keeper.py" in command_of(one))
    keeper.suspend()  # what ends in order waits for it
    process.send_signal(signal.SIGINT)
    assert "ending" in process.stdout.readline()
    time.sleep(run._TWICE_S + 0.5)
    process.send_signal(signal.SIGINT)
    process.wait(timeout=60)
    assert process.returncode == -signal.SIGINT
    keeper.resume()
    assert psutil.wait_procs(family, timeout=60)[1] == []
