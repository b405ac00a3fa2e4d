"""How the tests are spread over two processes (`./test`): a file's stay together, and so do all of `tests/live`.

Those start engines and agents, which are meant one at a time, and share servers; they go first, since they are half of
the time. Everything else fills the second process, and both when they are through.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

LIVE = "tests/live/"


def scope_of(nodeid: str) -> str:
    """What is run in one process, in its order."""
    return LIVE if nodeid.startswith(LIVE) else nodeid.partition("::")[0]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not item.nodeid.startswith(LIVE))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """Under `--dist loadfile` this one instead, which differs in what a scope is."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Spread(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid)

    config.option.loadscopereorder = False  # by the number of tests the longest would come last
    return Spread(config, log)
