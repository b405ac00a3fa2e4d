"""`_inherit_from`, `_copy` and `_delete_key`: what is taken over, from where, and what is said when it cannot be."""

from __future__ import annotations

import pytest

from nemo_gym.config.compose import compose
from nemo_gym.config.directives import follow
from nemo_gym.config.paths import locate

AGENT = {"responses_api_agents": {"simple_agent": {"entrypoint": "app.py", "limits": {"a": 1, "b": 2}, "old": 3}}}


def made(tree):
    faults = []
    result = follow(tree, lambda path, message: faults.append((".".join(path), message)))
    return result, faults


def test_what_is_inherited_moves_and_what_is_copied_stays():
    assert made({"a": {"x": 1}, "b": {"_inherit_from": "a", "y": 2}}) == ({"b": {"x": 1, "y": 2}}, [])
    assert made({"a": {"x": 1}, "b": {"_copy": "a", "y": 2}}) == ({"a": {"x": 1}, "b": {"x": 1, "y": 2}}, [])


def test_keys_beside_it_win_deep_inside_and_lists_are_replaced():
    base = {"m": {"n": 1, "o": [1, 2]}, "p": 1}
    assert made({"a": base, "b": {"_copy": "a", "m": {"o": [3]}}})[0]["b"] == {"m": {"n": 1, "o": [3]}, "p": 1}


def test_an_instance_is_made_of_another_with_keys_dropped():
    own = {"_inherit_from": "base.responses_api_agents.simple_agent", "limits": {"_delete_key": "a"}, "new": 4}
    tree = {"base": AGENT, "mine": {"responses_api_agents": {"simple_agent": own}}}
    result, faults = made(tree)
    assert faults == []
    assert result["mine"]["responses_api_agents"]["simple_agent"] == {
        "entrypoint": "app.py", "limits": {"a": 1, "b": 2}, "old": 3, "new": 4
    }  # fmt: skip
    assert result["base"] == {"responses_api_agents": {}}
    own = {"_copy": "base.responses_api_agents.simple_agent.limits", "_delete_key": "a, b"}
    assert made({"base": AGENT, "mine": own})[0]["mine"] == {}


def test_single_values_several_takers_and_chains():
    tree = {"a": {"x": 7}, "b": "${copy:a.x}", "c": ["${inherit_from:a.x}"], "d": {"_copy": "e"}, "e": {"_copy": "a"}}
    assert made(tree)[0] == {"a": {}, "b": 7, "c": [7], "d": {"x": 7}, "e": {"x": 7}}
    both = made({"a": {"x": 1}, "b": {"_inherit_from": "a"}, "c": {"_inherit_from": "a"}})
    assert both == ({"b": {"x": 1}, "c": {"x": 1}}, [])


def test_what_has_no_value_yet_has_none_where_it_is_taken():
    assert made({"a": "???", "b": {"_copy": "a"}, "c": "${copy:a.x}"})[0] == {"a": "???", "b": "???", "c": "???"}


def test_what_cannot_be_followed_is_told_all_at_once():
    tree = {
        "a": {"_copy": "nowhere.x"}, "b": {"_inherit_from": 5}, "c": {"_copy": "d"}, "d": {"_copy": "c"},
        "e": {"_copy": "f", "_delete_key": "z"}, "f": {"x": 1}, "g": {"_delete_key": "z"},
    }  # fmt: skip
    _, faults = made(tree)
    assert [place for place, _ in faults] == [
        "a._copy", "b._inherit_from", "c._copy", "d._copy", "e._delete_key"
    ]  # fmt: skip
    assert "there is no 'nowhere.x'" in faults[0][1] and "itself" in faults[2][1] and "'z'" in faults[4][1]


def test_directives_see_what_the_command_line_set(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.yaml").write_text("base:\n  resources_servers: {tiny: {entrypoint: app.py, size: 1}}\n")
    (tmp_path / "a.yaml").write_text("config_paths: [base.yaml]\nmine:\n  _inherit_from: base\nother: ${copy:base}\n")
    composed = compose(["+config_paths=[a.yaml]", "++base.resources_servers.tiny.size=5", "++late._copy=base"])
    assert composed.problems == []
    assert [instance.name for instance in composed.instances] == ["mine", "other", "late"]
    assert {instance.settings["size"] for instance in composed.instances} == {5}
    composed = compose(["+config_paths=[a.yaml]", "++x._copy=bose"])
    assert [(p.key, p.where) for p in composed.problems] == [("x._copy", "command line")]


def test_extra_roots_come_first(tmp_path, monkeypatch):
    for folder in ("one", "two", "here"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "two" / "x.yaml").write_text("a: 2")
    (tmp_path / "here" / "x.yaml").write_text("a: 3")
    (tmp_path / "here" / "y.yaml").write_text("b: 3")
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", f"{tmp_path}/one:{tmp_path}/two:")
    assert compose(["+config_paths=[x.yaml,y.yaml]"]).config == {"a": 2, "b": 3}
    assert locate("z.yaml").parent.joinpath("pyproject.toml").exists()  # the project's, where there is none


@pytest.mark.parametrize("name", ["x", 3])
def test_a_tree_can_be_parsed_alone(name):
    from omegaconf import OmegaConf

    from nemo_gym.config_types import ConfigError
    from nemo_gym.global_config import GlobalConfigDictParser, GlobalConfigDictParserConfig

    none = GlobalConfigDictParserConfig.NO_MODEL_GLOBAL_CONFIG_DICT
    server = {"resources_servers": {"tiny": {"entrypoint": "app.py", "model": "${policy_model_name}", "of": name}}}
    parsed = GlobalConfigDictParser().parse_no_environment(OmegaConf.merge(none, {"mine": server}))
    assert parsed.mine.resources_servers.tiny == {
        "entrypoint": "app.py", "model": "", "of": name, "host": "127.0.0.1", "port": 0
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"mine\.a: is required(.|\n)*mine\.b: is required"):
        GlobalConfigDictParser().parse_no_environment(OmegaConf.create({"mine": {"a": "???", "b": "???"}}))
