"""Around a client: an environment that has only what it is given, and the command that wraps its command.

No proxy, key or setting of the machine reaches a client. What would go out to the network is pointed at a closed port;
a client that does not heed that is kept in by a wrapper (bubblewrap, a container) that the config names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .workspace import Workspace

_NOWHERE = "http://127.0.0.1:9"
_KEPT = ("PATH", "LANG", "LC_ALL", "TZ")
_PLACE = re.compile(r"\{([a-z_]+)\}")

Places = Mapping[str, str | int]


def environment(workspace: Workspace, own: Mapping[str, str], compiled: str, model_host: str) -> dict[str, str]:
    """A client's environment variables; its own win. `model_host` is reached without a proxy."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {
        "LANG": "C.UTF-8",
        **kept,
        "HOME": str(workspace.home),
        "TMPDIR": str(workspace.temporary),
        "NODE_COMPILE_CACHE": compiled,
        "HTTP_PROXY": _NOWHERE,
        "HTTPS_PROXY": _NOWHERE,
        "NO_PROXY": f"127.0.0.1,localhost,::1,{model_host}",
        "npm_config_registry": _NOWHERE,
        **own,
    }


def wrapped(command: Sequence[str], wrapper: Sequence[str], places: Places) -> list[str]:
    """The command behind the wrapper's words; `{command}` among them says where, else it comes last."""
    words: list[str] = []
    put = False
    for word in wrapper:
        if word == "{command}":
            words += command
            put = True
        else:
            words.append(str(filled(word, places)))
    return words if put else [*words, *command]


def filled(value: Any, places: Places) -> Any:
    """A value with its `{place}`s filled in, however deep; a string that is one place alone takes its type."""
    if isinstance(value, str):
        alone = _PLACE.fullmatch(value)
        if alone is not None and alone[1] in places:
            return places[alone[1]]
        return _PLACE.sub(lambda found: str(places.get(found[1], found[0])), value)
    if isinstance(value, Mapping):
        return {str(filled(name, places)): filled(one, places) for name, one in value.items()}
    return [filled(one, places) for one in value] if isinstance(value, list | tuple) else value
