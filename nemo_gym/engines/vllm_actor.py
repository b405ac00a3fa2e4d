"""vLLM as one Ray actor: the engine is built whole in `__init__`, so an actor that Ray restarts is ready again.

Calls cross the process border as bytes (packed.py). Log-probs are of the distribution that was sampled
(`processed_logprobs`). An actor whose engine is dead ends itself: only then does Ray start it anew. The
module imports vLLM inside the actor alone.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import os
import shutil
import tempfile
import time
from array import array
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np

from ..exchange.request import Sampling
from . import forked
from .arguments import check_arguments, checked_values
from .checkpoint import BadCheckpoint
from .engine import EngineRequest
from .packed import ActorFailure, ActorOutput, ActorReply, Answered, asked, packed
from .processes import Begun
from .sampling import engine_fields
from .start import ErrorLog, StartError, say
from .vllm_weights import EngineWeights

logger = logging.getLogger(__name__)

_GATHER_S = 0.05
"""Pieces of a stream are gathered for so long: Ray has a price for each."""


class VllmActor:
    """One replica. Wrapped by `ray.remote` where it is deployed."""

    def __init__(
        self,
        engine_args: Mapping[str, Any],
        gpus: float,
        name: str = "vllm",
        adapters: Mapping[str, str] | None = None,
        threads: int | None = None,
    ) -> None:
        say(name, "vLLM is imported")
        log = ErrorLog()
        self._processes = Begun()
        self._sockets = tempfile.mkdtemp(prefix="ng-vllm-")
        _set_environment(gpus, threads)
        os.environ["VLLM_RPC_BASE_PATH"] = self._sockets
        if gpus == 0:
            forked.begin()
        from vllm.config import KVTransferConfig
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        args = {
            "logprobs_mode": "processed_logprobs",
            "disable_log_stats": True,
            "worker_extension_cls": f"{__package__}.worker.WeightsWorker",
        } | dict(engine_args)
        check_arguments(args, [field.name for field in dataclasses.fields(AsyncEngineArgs)])
        args = checked_values(AsyncEngineArgs, args)
        if isinstance(transfer := args.get("kv_transfer_config"), Mapping):
            args["kv_transfer_config"] = KVTransferConfig(**transfer)
        say(name, f"{args.get('model')} is loaded")
        try:
            self._engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**args))
        except Exception as error:
            raise StartError(log.cause() or f"{type(error).__name__}: {error}") from None
        say(name, "the first token is awaited")
        self._context = int(self._engine.model_config.max_model_len)
        self._defaults = dict(self._engine.model_config.get_diff_sampling_param() or {})
        self._memory = self._processes.shared_memory()
        self._adapters = dict(adapters or {})
        self._weights = EngineWeights(self._engine, gpus)
        self._checks = 0

    async def describe(self) -> dict[str, Any]:
        """Facts that the server needs and that only the engine knows."""
        return {
            "context": self._context,
            "pid": os.getpid(),
            "version": self._weights.version,
            "capacity": self._capacity(),
        }

    def _capacity(self) -> int | None:
        """Tokens that the cache holds; None where vLLM does not say."""
        cache = self._engine.vllm_config.cache_config
        blocks = getattr(cache, "num_gpu_blocks", None)
        return int(blocks) * int(cache.block_size) if blocks else None

    async def answer(self, data: bytes) -> bytes:
        """`generate`, asked from another process."""
        told = asked(data)
        return packed(await self.generate(told.call_id, told.request))

    async def generate(self, call_id: str, request: EngineRequest) -> Answered:
        """One whole answer; cancelling the task aborts the generation."""
        final = None
        try:
            async for output in self._generated(call_id, request, "FINAL_ONLY"):
                final = output
        except Exception as error:
            return self._failure(error)
        assert final is not None
        outputs = tuple(self._output(output, request.sampling.logprobs) for output in final.outputs)
        prompt = _first_each(final.prompt_logprobs) if request.prompt_logprobs else None
        return ActorReply(outputs, final.num_cached_tokens, prompt, final.kv_transfer_params)

    async def stream(self, data: bytes) -> AsyncIterator[bytes]:
        """The same of one choice, in pieces that are gathered for a while; the last one has the finish."""
        told = asked(data)
        waiting: list[ActorOutput] = []
        sent = -math.inf
        try:
            async for output in self._generated(told.call_id, told.request, "DELTA"):
                waiting += [self._output(one, told.request.sampling.logprobs) for one in output.outputs]
                now = time.monotonic()
                if output.finished or now - sent >= _GATHER_S:
                    yield packed(ActorReply((_joined(waiting),), output.num_cached_tokens))
                    waiting, sent = [], now
        except Exception as error:
            yield packed(self._failure(error))

    def _failure(self, error: Exception) -> ActorFailure:
        from vllm.exceptions import VLLMClientError
        from vllm.v1.engine.exceptions import EngineDeadError

        if isinstance(error, EngineDeadError):
            self._end()
        if isinstance(error, (VLLMClientError, ValueError)):
            return ActorFailure(True, str(error))
        logger.error("generation failed", exc_info=error)
        return ActorFailure(False, type(error).__name__)

    def _generated(
        self, call_id: str, request: EngineRequest, kind: Literal["FINAL_ONLY", "DELTA"]
    ) -> AsyncIterator[Any]:
        from vllm import SamplingParams, TokensPrompt
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        prompt = request.prompt_ids
        fields = engine_fields(request.sampling, self._context - len(prompt), self._defaults)
        if request.guide is not None:
            fields["structured_outputs"] = StructuredOutputsParams(**request.guide)
        if request.prompt_logprobs:
            fields["prompt_logprobs"] = 0
        if request.ends:
            fields["stop_token_ids"] = [*fields.get("stop_token_ids", ()), *request.ends]
        if request.endless:
            fields |= {"ignore_eos": True, "stop": None, "stop_token_ids": None}
        if request.handoff is not None:
            fields["extra_args"] = {"kv_transfer_params": dict(request.handoff)}
        params = SamplingParams(output_kind=RequestOutputKind[kind], **fields)
        given: AsyncIterator[Any] = self._engine.generate(
            TokensPrompt(prompt_token_ids=prompt.tolist()), params, call_id, lora_request=self._lora(request.adapter)
        )
        return given

    def _lora(self, adapter: str | None) -> Any:
        if adapter is None:
            return None
        from vllm.lora.request import LoRARequest

        names = list(self._adapters)
        if adapter not in names:
            raise ValueError(f"model: the engine has no adapter {adapter!r}")
        return LoRARequest(adapter, names.index(adapter) + 1, self._adapters[adapter])

    def _output(self, output: Any, alternatives: int | None) -> ActorOutput:
        flat = output.logprobs
        texts = top = None
        if alternatives is not None:
            texts = tuple(flat.decoded_tokens[start] or "" for start in flat.start_indices)
            top = tuple(_alternatives(flat, position) for position in range(len(flat)))
        return ActorOutput(
            index=output.index,
            ids=array("i", output.token_ids),
            logprobs=_first_each(flat),
            text=output.text,
            finish=output.finish_reason,
            stop=output.stop_reason,
            versions=self._weights.versions(output) if output.finish_reason is not None else (),
            texts=texts,
            top=top,
        )

    async def check(self) -> int:
        """One real token; the policy version it bears."""
        self._checks += 1
        prompt = array("i", (0, 0))  # connectors hand over all but the last token, and some cannot of none
        reply = await self.generate(f"check-{self._checks}", EngineRequest(prompt, Sampling(max_tokens=1)))
        if isinstance(reply, ActorFailure):
            raise RuntimeError(reply.message)
        return self._weights.version

    async def weights(self, step: str, *args: Any) -> Any:
        """One of the steps of `EngineWeights`; an ActorFailure when it failed."""
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            if step in ("stage", "unstage"):
                return await asyncio.to_thread(getattr(self._weights, step), *args)
            return await getattr(self._weights, step)(*args)
        except EngineDeadError:
            self._end()
        except BadCheckpoint as error:
            return ActorFailure(True, str(error))
        except Exception as error:
            logger.exception("weights: %s failed", step)
            return ActorFailure(False, str(error) or type(error).__name__)

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
        self._processes.kill()
        for path in self._memory:
            Path(path).unlink(missing_ok=True)
        shutil.rmtree(self._sockets, ignore_errors=True)


def _joined(pieces: Sequence[ActorOutput]) -> ActorOutput:
    """Pieces of one choice as one."""
    last = pieces[-1]
    if len(pieces) == 1:
        return last
    return ActorOutput(
        index=last.index,
        ids=sum((one.ids for one in pieces), array("i")),
        logprobs=sum((one.logprobs for one in pieces), array("f")),
        text="".join([one.text for one in pieces]),
        finish=last.finish,
        stop=last.stop,
        versions=last.versions,
        texts=None if last.texts is None else tuple(text for one in pieces for text in one.texts or ()),
        top=None if last.top is None else tuple(top for one in pieces for top in one.top or ()),
    )


def _first_each(flat: Any) -> array:
    """The log-prob of each position's own token, which comes first; not a number where there is none."""
    starts, ends = (np.asarray(side, dtype=np.int64) for side in (flat.start_indices, flat.end_indices))
    values = np.append(np.asarray(flat.logprobs, dtype=np.float32), np.float32("nan"))
    return array("f", values[np.where(starts < ends, starts, -1)].tobytes())


def _alternatives(flat: Any, position: int) -> dict[str, float]:
    # Under truncation some alternatives have probability 0: -inf is no JSON, and says nothing.
    # The first entry is the sampled token, which the others may repeat.
    span = range(flat.start_indices[position] + 1, flat.end_indices[position])
    return {flat.decoded_tokens[i] or "": flat.logprobs[i] for i in span if math.isfinite(flat.logprobs[i])}


def _set_environment(gpus: float, threads: int | None) -> None:
    """Before vLLM is imported; what the operator set stays.

    Args:
        threads: of each worker without a GPU, on whichever cores; None: on cores that vLLM chooses.
    """
    defaults = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    if gpus == 0:
        # The first log-prob request would compile a kernel, which takes a C++ compiler; the cache's
        # own default is more memory than a small machine has.
        defaults |= {"TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
        if threads is not None and "VLLM_CPU_OMP_THREADS_BIND" not in os.environ:
            os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(threads)}
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
