"""vLLM as one Ray actor: the engine is built whole in `__init__`, so an actor that Ray restarts is ready again.

Numbers cross the process border as numpy arrays. Log-probs are of the distribution that was sampled
(`processed_logprobs`). An actor whose engine is dead ends itself: only then does Ray start it anew. The
module imports vLLM inside the actor alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import psutil
from msgspec import Struct

from ..exchange.request import Sampling
from . import forked
from .sampling import engine_fields, schema_fields

logger = logging.getLogger(__name__)

CHECK_S = 30.0
"""A hung worker passes vLLM's own health check; only a token that comes in time tells."""


class ActorOutput(Struct, frozen=True):
    """One choice as it leaves the actor."""

    index: int
    ids: np.ndarray
    """int32"""
    logprobs: np.ndarray
    """float32"""
    text: str
    finish: str | None
    stop: str | int | None
    versions: tuple[tuple[int, int], ...]
    texts: tuple[str, ...] | None = None
    top: tuple[dict[str, float], ...] | None = None


class ActorReply(Struct, frozen=True):
    outputs: tuple[ActorOutput, ...]
    cached: int | None


class ActorFailure(Struct, frozen=True):
    """A failure as a value: an exception of vLLM's could only be read where vLLM is imported."""

    refused: bool
    """The request is at fault, and `message` says how."""
    message: str


class VllmActor:
    """One replica. Wrapped by `ray.remote` where it is deployed."""

    def __init__(self, engine_args: Mapping[str, Any], gpus: float) -> None:
        self._sockets = tempfile.mkdtemp(prefix="ng-vllm-")
        _set_environment(gpus)
        os.environ["VLLM_RPC_BASE_PATH"] = self._sockets
        if gpus == 0:
            forked.begin()
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        args = {"logprobs_mode": "processed_logprobs", "disable_log_stats": True} | dict(engine_args)
        self._engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**args))
        self._context = int(self._engine.model_config.max_model_len)
        self._defaults = dict(self._engine.model_config.get_diff_sampling_param() or {})
        self._memory = _shared_memory()
        self._version = 0
        self._checks = 0

    async def describe(self) -> dict[str, Any]:
        """Facts that the server needs and that only the engine knows."""
        return {"context": self._context, "pid": os.getpid(), "version": self._version}

    async def generate(
        self, call_id: str, prompt_ids: np.ndarray, sampling: Sampling, schema: Mapping[str, Any] | None = None
    ) -> ActorReply | ActorFailure:
        """One whole answer; cancelling the task aborts the generation."""
        from vllm.exceptions import VLLMClientError
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            final = await self._final(call_id, prompt_ids, sampling, schema)
        except EngineDeadError:
            self._end()
        except (VLLMClientError, ValueError) as error:
            return ActorFailure(True, str(error))
        except Exception as error:
            logger.exception("generation failed")
            return ActorFailure(False, type(error).__name__)
        outputs = tuple(self._output(output, sampling.logprobs) for output in final.outputs)
        return ActorReply(outputs, final.num_cached_tokens)

    async def _final(
        self, call_id: str, prompt_ids: np.ndarray, sampling: Sampling, schema: Mapping[str, Any] | None
    ) -> Any:
        from vllm import SamplingParams, TokensPrompt
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        fields = engine_fields(sampling, self._context - len(prompt_ids), self._defaults)
        if schema is not None:
            fields["structured_outputs"] = StructuredOutputsParams(**schema_fields(schema))
        params = SamplingParams(output_kind=RequestOutputKind.FINAL_ONLY, **fields)
        final = None
        async for output in self._engine.generate(TokensPrompt(prompt_token_ids=prompt_ids.tolist()), params, call_id):
            final = output
        return final

    def _output(self, output: Any, alternatives: int | None) -> ActorOutput:
        flat = output.logprobs
        starts = np.asarray(flat.start_indices, dtype=np.int64)
        values = np.asarray(flat.logprobs, dtype=np.float32)
        texts = top = None
        if alternatives is not None:
            texts = tuple(flat.decoded_tokens[start] or "" for start in flat.start_indices)
            top = tuple(_alternatives(flat, position) for position in range(len(flat)))
        return ActorOutput(
            index=output.index,
            ids=np.asarray(output.token_ids, dtype=np.int32),
            logprobs=values[starts],
            text=output.text,
            finish=output.finish_reason,
            stop=output.stop_reason,
            versions=((0, self._version),),
            texts=texts,
            top=top,
        )

    async def check(self) -> int:
        """One real token, in time; the policy version it bears."""
        self._checks += 1
        prompt = np.zeros(1, dtype=np.int32)
        answer = self.generate(f"check-{self._checks}", prompt, Sampling(max_tokens=1))
        reply = await asyncio.wait_for(answer, CHECK_S)
        if isinstance(reply, ActorFailure):
            raise RuntimeError(reply.message)
        return self._version

    async def unfinished(self) -> int:
        """Generations in progress."""
        return int(self._engine.get_num_unfinished_requests())

    async def close(self) -> None:
        """Ends the engine's own processes; the actor is not used after it."""
        await asyncio.to_thread(self._shutdown)

    def _end(self) -> NoReturn:
        # An exit that Ray was not asked for: it counts as a failure, and Ray starts the actor again.
        try:
            self._shutdown()
        finally:
            os._exit(1)

    def _shutdown(self) -> None:
        # vLLM's own way takes six seconds or more, and these processes hold nothing that must be put away.
        for process in _children():
            with contextlib.suppress(psutil.Error):
                process.kill()
        for path in self._memory:
            Path(path).unlink(missing_ok=True)
        shutil.rmtree(self._sockets, ignore_errors=True)


def _children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def _shared_memory() -> set[str]:
    """The segments over which vLLM's processes talk; nobody else frees those of a killed one."""
    maps: set[str] = set()
    for process in _children():
        with contextlib.suppress(psutil.Error):
            maps.update(entry.path for entry in process.memory_maps() if entry.path.startswith("/dev/shm/psm_"))
    return maps


def _alternatives(flat: Any, position: int) -> dict[str, float]:
    # Under truncation some alternatives have probability 0: -inf is no JSON, and says nothing.
    # The first entry is the sampled token, which the others may repeat.
    span = range(flat.start_indices[position] + 1, flat.end_indices[position])
    return {flat.decoded_tokens[i] or "": flat.logprobs[i] for i in span if math.isfinite(flat.logprobs[i])}


def _set_environment(gpus: float) -> None:
    """Before vLLM is imported; what the operator set stays."""
    defaults = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    if gpus == 0:
        # The first log-prob request would compile a kernel, which takes a C++ compiler; the cache's
        # own default is more memory than a small machine has.
        defaults |= {"TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
