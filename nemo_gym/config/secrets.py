"""Which values of a configuration are secret, and the configuration with them masked.

A value is secret by its key's name, by coming from the environment (`${oc.env:X}`), or by containing such a value:
a secret that is spliced into a URL stays one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

MASK = "****"
_NAME = re.compile(
    r"(^|_)(api_?keys?|keys?|token|secrets?|password|passwd|passphrase|credentials?|authorization|cookie)$", re.I
)
_FROM_ENVIRONMENT = re.compile(r"\$\{\s*oc\.(env|decode)\s*:")
_USER_INFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_SHORTEST = 4  # shorter values would mask ordinary text that happens to contain them


def secret_name(key: str) -> bool:
    return _NAME.search(key.replace("-", "_")) is not None


def masked(config: Any, raw: Any = None) -> Any:
    """`config` with every secret masked.

    Args:
        raw: the same configuration before its references were resolved.
    """
    secrets = sorted(set(_secrets(config, raw, False)), key=len, reverse=True)

    def mask(value: Any, written: Any, hidden: bool) -> Any:
        if isinstance(value, dict):
            return {k: mask(v, _at(written, k), hidden or secret_name(str(k))) for k, v in value.items()}
        if isinstance(value, list):
            return [mask(v, _at(written, i), hidden) for i, v in enumerate(value)]
        if value is None or isinstance(value, bool) or value in ("", "???"):
            return value
        if hidden or _from_environment(written):
            return MASK
        if isinstance(value, str):
            for secret in secrets:
                value = value.replace(secret, MASK)
            return _USER_INFO.sub(MASK, value)
        return value

    return mask(config, raw, False)


def secret_values(settings: Any) -> set[str]:
    """The values under names of secrets."""
    return set(_secrets(settings, None, False))


def _secrets(value: Any, written: Any, hidden: bool) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _secrets(inner, _at(written, key), hidden or secret_name(str(key)))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _secrets(inner, _at(written, index), hidden)
    elif isinstance(value, str) and len(value) >= _SHORTEST and (hidden or _from_environment(written)):
        yield value


def _from_environment(written: Any) -> bool:
    return isinstance(written, str) and _FROM_ENVIRONMENT.search(written) is not None


def _at(written: Any, key: Any) -> Any:
    try:
        return written[key]
    except (KeyError, IndexError, TypeError):
        return None
