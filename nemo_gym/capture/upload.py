"""Sealed shards copied to a remote folder, through Arrow's file systems; each is there whole or not at all."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from .index import INDEX

_TRIES = 3


class Uploader:
    """To `<uri>/<run>/<name>`.

    Args:
        uri: of any file system that Arrow knows (s3://, gs://, hdfs://, file://), or a path.

    Raises:
        ValueError: Arrow does not know the URI.
    """

    def __init__(self, uri: str) -> None:
        from pyarrow import fs

        try:
            where = uri if "://" in uri else Path(uri).absolute().as_uri()
            self._fs, self._folder = fs.FileSystem.from_uri(where)
        except (ValueError, OSError, NotImplementedError) as error:
            raise ValueError(f"capture.upload: {uri!r} is no folder that can be written to: {error}") from error

    def put(self, shard: Path) -> bool:
        """Whether it was not there yet. Raises OSError after a few tries."""
        sidecar = shard.with_suffix(INDEX)
        for attempt in range(_TRIES):
            try:
                new = self._copy(shard, shard.parent.name)
                if sidecar.exists():  # after its shard: there is never an index alone
                    self._copy(sidecar, shard.parent.name)
                return new
            except OSError:
                if attempt == _TRIES - 1:
                    raise
                time.sleep(2**attempt)
        return False

    def _copy(self, path: Path, run: str) -> bool:
        from pyarrow import fs

        folder = f"{self._folder}/{run}"
        target = f"{folder}/{path.name}"
        there: Any = self._fs.get_file_info(target)
        if there.type == fs.FileType.File and there.size == path.stat().st_size:
            return False
        self._fs.create_dir(folder, recursive=True)
        local = isinstance(self._fs, fs.LocalFileSystem)  # an object store shows an object when it is whole
        writing = f"{target}.tmp" if local else target
        with path.open("rb") as source, self._fs.open_output_stream(writing) as sink:
            while data := source.read(8 << 20):
                sink.write(data)
        if local:
            self._fs.move(writing, target)
        return True
