"""An export whose reading and making is done on a Ray cluster: portions go out, packed rollouts come back in order.

What is decided over the whole run (groups, samples, duplicates) and the files themselves stay here. Every node has to
reach the captures by the same path.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..capture.store import CaptureStore
from . import on_ray
from .formats import FORMATS
from .ledger import Ledger
from .options import Options
from .parcels import Packer
from .portions import Looked, Packed, Plan, Portion, looked, packed
from .sources import Source


class Distributed:
    def __init__(
        self, source: Source, names: list[str], options: Options, ledger: Ledger, scratch: Path, address: str
    ) -> None:
        self._alone = source.results is None
        self._captures = str(source.captures.absolute())
        self._names = names
        self._options = options
        self._ledger = ledger
        self._address = address
        self._plan = Plan(scratch / "plan.sqlite", ledger, CaptureStore(self._captures), shared=options.shared)

    def packed(self) -> Iterator[Packed]:
        try:
            with on_ray.connected(self._address):
                self._survey()
                work = _Pack(self._captures, self._names, self._options, self._alone)
                for made in on_ray.over(work, map(pickle.dumps, self._plan.portions())):
                    yield pickle.loads(made)
        finally:
            self._plan.close()

    def _survey(self) -> None:
        exact = self._options.max_staleness is not None
        work = _Look(self._captures, exact, self._alone)
        for made in on_ray.over(work, (str(path).encode() for path in self._plan.paths)):
            one: Looked | None = pickle.loads(made)
            if one is not None:
                self._plan.add(one)
        self._ledger.judge(self._options, self._plan.version, alone=self._alone)


class _Look:
    """Goes to where the work is done."""

    def __init__(self, captures: str, exact: bool, alone: bool) -> None:
        self._captures = captures
        self._how: dict[str, Any] = {"exact_versions": exact, "alone": alone}

    def __call__(self, path: bytes) -> bytes:
        return pickle.dumps(looked(CaptureStore(self._captures), Path(path.decode()), **self._how))


class _Pack:
    def __init__(self, captures: str, names: list[str], options: Options, alone: bool) -> None:
        self._captures = captures
        self._names = names
        self._options = options
        self._alone = alone

    def __call__(self, item: bytes) -> bytes:
        portion: Portion = pickle.loads(item)
        with tempfile.TemporaryDirectory() as folder:  # a format may keep something; nothing is written
            formats = [FORMATS[name](Path(folder) / name, self._options) for name in self._names]
            packer = Packer(formats, self._options, alone=self._alone)
            return pickle.dumps(packed(CaptureStore(self._captures), portion, packer, alone=self._alone))
