"""What the page on environments says of names and commands holds in the code."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

from nemo_gym.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "fern" / "pages" / "environments.mdx").read_text()
SURFACE = [
    "base_resources_server", "base_responses_api_agent", "base_responses_api_model", "config_types", "deliverables",
    "episode_types", "failure_kinds", "global_config", "judge", "mcp_auto_exposure", "openai_utils", "path_utils",
    "prompt", "reward_profile", "responses_converter", "rollout_collection", "rollout_correlation",
    "rollout_observability", "sandbox", "sandbox.access", "sandbox.agent_tools", "sandbox.config", "sandbox.providers",
    "sandbox.providers.base", "sandbox.providers.local", "sandbox.providers.registry", "sandbox.utils",
    "skills",
    "server_utils", "single_agent_turn_types", "task_data", "task_materialization", "testing.session_conformance",
    "tool_access", "verifier_fixture",
]  # fmt: skip


def test_the_modules_that_are_named_have_the_names_that_are_named():
    table = PAGE.split("| module |")[1].split("\n\n")[0]
    found = 0
    for line in table.splitlines()[2:]:
        modules, names = (re.findall(r"`([\w.]+)`", cell) for cell in line.strip("|").split("|"))
        for module in modules:
            loaded = import_module(module)
            for name in names if len(modules) == 1 else ():
                assert hasattr(loaded, name), (module, name)
                found += 1
    assert found > 40


def test_the_commands_that_are_named_are_there():
    named = set(re.findall(r"`?ng_(\w+)", PAGE))
    assert named <= set(COMMANDS), named - set(COMMANDS)
    assert {"init_resources_server", "test", "prepare_data", "validate"} <= named


@pytest.mark.parametrize("name", SURFACE)
def test_the_surface_is_names_only(name):
    """No definition of its own: each name is defined in one room, and `__all__` is what is imported. A module may be
    that room's itself, where tests replace names in it, and may look up what few ask for."""
    module = import_module(f"nemo_gym.{name}")
    path = ROOT / "nemo_gym" / name.replace(".", "/")
    tree = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())
    definitions = [
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)
    ]
    assert set(definitions) <= {"__getattr__"}
    imported = {
        alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    (exported,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    assert set(exported) - imported <= {"BaseResponsesAPIModel", "BaseResponsesAPIAgent", "BaseResourcesServer"}
    assert all(hasattr(module, one) for one in exported)


def test_common_names_are_had_from_the_package_itself():
    import nemo_gym

    for name in nemo_gym._SURFACE:
        assert getattr(nemo_gym, name) is not None
    assert nemo_gym.PARENT_DIR == ROOT
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        nemo_gym.nothing  # noqa: B018
