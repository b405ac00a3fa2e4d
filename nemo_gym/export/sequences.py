"""Training sequences: one for each branch of a rollout, each generated token trained in exactly one of them.

A sequence is what the model saw and said from the first prompt to the last completion of a branch. What an earlier
branch has already trained is context here, with a mask of 0.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

from msgspec import Struct

from .forest import WIDTH, Forest, Generation
from .lines import main_line
from .options import Branches

NO_VERSION = -1
"""The policy version of a token that no policy sampled, or whose policy is not known."""
_UNKNOWN = array("i", [NO_VERSION]).tobytes()


class Sequence(Struct, frozen=True):
    """Columns of equal length, as the bytes of int32, int8, float32 and int32; and what they are made of."""

    input_ids: bytes
    loss_mask: bytes
    logprobs: bytes
    policy_version: bytes
    branch: int
    generations: tuple[Generation, ...]
    """Those on the path, first to last."""
    trained: tuple[Generation, ...]
    """Those that this sequence trains."""

    def __len__(self) -> int:
        return len(self.loss_mask)

    @property
    def model(self) -> str:
        return self.generations[-1].call.model

    @property
    def run_id(self) -> str:
        return self.generations[-1].call.run_id


def choose(forest: Forest, branches: Branches) -> None:
    """Discards what the branches asked for do not train."""
    if branches in ("all", "calls"):
        return
    line = [call.call_id for call in main_line({one.call.call_id: one.call for one in forest.generations}.values())]
    kept = set(line if branches == "main" else line[-1:])
    reason = "off_main_line" if branches == "main" else "not_last_call"
    for one in forest.generations:
        if one.discarded is None and one.call.call_id not in kept:
            one.discarded = reason


def sequences(forest: Forest, branches: Branches = "all") -> Iterator[Sequence]:
    """Branches in the order of their calls; the first child of a generation carries its sequence on."""
    done: set[Generation] = set()
    ends = forest.generations if branches == "calls" else _ends(forest)
    branch = 0
    for end in ends:
        if end.discarded is not None:
            continue
        path = end.path
        among = path[-1:] if branches == "calls" else path
        trained = tuple(one for one in among if one.discarded is None and one not in done)
        if not trained:
            continue
        done.update(trained)
        yield _sequence(path, trained, branch)
        branch += 1


def _ends(forest: Forest) -> Iterator[Generation]:
    """What is trained and has nothing behind it that is; depth first."""
    leading: set[Generation] = set()
    for one in reversed(forest.generations):  # children come after their parents
        if (one.discarded is None or one in leading) and one.parent is not None:
            leading.add(one.parent)
    stack = forest.roots[::-1]
    while stack:
        one = stack.pop()
        if one in leading:
            stack.extend(reversed(one.children))
        else:
            yield one


def _sequence(path: list[Generation], trained: tuple[Generation, ...], branch: int) -> Sequence:
    ids: list[bytes] = []
    mask: list[bytes] = []
    logprobs: list[bytes] = []
    versions: list[bytes] = []
    own = set(trained)
    for one in path:
        added, said = len(one.added) // WIDTH, one.said
        ids += (one.added, one.ids)
        if one not in own:
            mask.append(bytes(added + said))
            logprobs.append(bytes((added + said) * WIDTH))
            versions.append(_UNKNOWN * (added + said))
            continue
        assert one.logprobs is not None
        mask += (bytes(added), b"\x01" * said)
        logprobs += (bytes(added * WIDTH), one.logprobs)
        versions += (_UNKNOWN * added, _versions(one.spoken.versions, said))
    return Sequence(
        *(b"".join(ids), b"".join(mask), b"".join(logprobs), b"".join(versions), branch, tuple(path), trained)
    )


def _versions(runs: tuple[tuple[int, int], ...], said: int) -> bytes:
    """Runs (start, version) as one version a token."""
    if len(runs) == 1 and runs[0][0] == 0:  # the usual call
        return _word(runs[0][1]) * said
    known = [*runs, (said, NO_VERSION)]
    spread = [_word(version) * (last - first) for (first, version), (last, _) in pairwise(known)]
    return _UNKNOWN * min(known[0][0], said) + b"".join(spread)


@lru_cache(maxsize=1024)
def _word(version: int) -> bytes:
    return array("i", [version]).tobytes()
