"""What is said of a server that gets no place, cannot be made on its node, or is lost with it."""

import io

import pytest
from rich.console import Console

from nemo_gym.config.compose import compose
from nemo_gym.config.types import PlaceConfig
from nemo_gym.launch import cluster, remote
from nemo_gym.launch.host import Place
from nemo_gym.launch.launcher import Launcher, LaunchError
from tests import project

AA, AB = "aa" + "1" * 54, "ab" + "2" * 54
NODES = [
    {
        "NodeID": AA,
        "NodeManagerAddress": "10.0.0.1",
        "Resources": {"CPU": 4.0, "memory": 9e9, "node:10.0.0.1": 1.0},
    },
    {"NodeID": AB, "NodeManagerAddress": "10.0.0.2", "Resources": {"CPU": 4.0, "big": 1.0}},
]


def test_no_place():
    said = cluster._no_place(PlaceConfig(num_cpus=8), NODES, 30)
    assert said == (
        "Ray found no place for it within 30 s: it asks for {'num_cpus': 8.0}, and the nodes have "
        "aa1111111111 (10.0.0.1): CPU 4; ab2222222222 (10.0.0.2): CPU 4, big 1"
    )


@pytest.mark.parametrize(("node", "found"), [("10.0.0.2", AB), ("aa", AA), ("ab22", AB)])
def test_a_node_by_address_or_id(node, found):
    pytest.importorskip("ray")
    asked = cluster._asked_of_ray("env", PlaceConfig(node=node, resources={"big": 0.5}), NODES)
    assert (asked["scheduling_strategy"].node_id, asked["scheduling_strategy"].soft) == (found, False)
    assert (asked["resources"], asked["num_gpus"], "num_cpus" in asked) == ({"big": 0.5}, 0, False)


@pytest.mark.parametrize(("node", "count"), [("a", 2), ("10.0.0.3", 0)])
def test_a_node_that_is_not_one(node, count):
    pytest.importorskip("ray")
    with pytest.raises(LaunchError, match=f"ray.node: '{node}' names {count} nodes of aa1111111111 "):
        cluster._asked_of_ray("env", PlaceConfig(node=node), NODES)


def test_without_a_wish_it_is_spread():
    pytest.importorskip("ray")
    asked = cluster._asked_of_ray("env", PlaceConfig(num_cpus=0), NODES)
    assert asked == {"num_gpus": 0, "resources": {}, "num_cpus": 0, "scheduling_strategy": "SPREAD"}


def test_a_node_without_this_project():
    error = RuntimeError("The actor died:\nTraceback …\nModuleNotFoundError: No module named 'nemo_gym'\nmore of Ray's")
    said = cluster._not_run(error)
    assert "No module named 'nemo_gym'" in said
    assert "expected the same installation on every node" in said


def test_what_was_lost():
    place = Place("68640a3be9074d7a8349", "10.0.0.2", "http://10.0.0.2:1", ("10.0.0.2", 1), None)
    died = RuntimeError("The actor is dead because its node has died. Node Id: 68640a…")
    assert remote._why_lost(died, place) == "was lost with its node 68640a3be907 (10.0.0.2)"
    killed = RuntimeError("The actor is dead because its worker process has died.")
    assert remote._why_lost(killed, place) == "was lost: its actor on node 68640a3be907 (10.0.0.2) has ended"


async def test_without_ray_it_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(project.make(tmp_path))
    monkeypatch.setattr(cluster, "find_spec", lambda name: None)
    launcher = Launcher(compose(["+config_paths=[run.yaml]", "++ray.address=auto"]), "run", tmp_path / "logs")
    with pytest.raises(LaunchError, match=r"ray\.address: needs Ray"):
        await launcher.up(Console(file=io.StringIO()))
