"""The weights of one engine, inside its actor: paused, checked, loaded, probed, put to sleep.

Nothing is loaded that was not compared with the model first. Caches go with the old weights: a prefix computed by them
is wrong under the new ones.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from . import checkpoint
from .checkpoint import BadCheckpoint, Stamp

_MEMORY = Path("/dev/shm")
_PROBE = 32
"""Tokens of the prompt whose log-probs are compared."""
_BIG_STEP = 7919


class EngineWeights:
    """Args:
    engine: vLLM's AsyncLLM.
    gpus: of each worker.
    """

    def __init__(self, engine: Any, gpus: float) -> None:
        self.version = 0
        self._engine = engine
        self._model = Path(engine.model_config.model)
        self._tied = bool(getattr(engine.model_config.hf_text_config, "tie_word_embeddings", False))
        self._expected: checkpoint.Checkpoint | None = None
        self._staged: str | None = None
        self._own = False
        """What is staged is a folder of ours."""
        self._probes = 0
        self._probe_vocabulary = int(engine.model_config.get_vocab_size())
        self._needs_sleep_mode = gpus > 0
        self._context = int(engine.model_config.max_model_len)

    def stage(self, source: str | bytes) -> Stamp:
        """Makes these weights the next to be loaded; a path's stamp tells whether it has changed since.

        Raises:
            BadCheckpoint: they are not this model's.
        """
        self.unstage()
        if isinstance(source, str):
            stamp = self._checked(source)
            self._staged = source
            return stamp
        folder = tempfile.mkdtemp(prefix="ng-weights-", dir=_MEMORY if _MEMORY.is_dir() else None)
        self._staged, self._own = folder, True
        try:
            (Path(folder) / "model.safetensors").write_bytes(source)
            self._checked(folder)
        except BaseException:
            self.unstage()
            raise
        return ()

    def _checked(self, folder: str) -> Stamp:
        if self._expected is None:
            try:
                self._expected = checkpoint.read(self._model)
            except BadCheckpoint as error:
                raise BadCheckpoint(f"the engine's own model has nothing to compare it with: {error}") from None
        found = checkpoint.read(folder)
        checkpoint.check(found.tensors, self._expected.tensors, tied=self._tied)
        return found.stamp

    def unstage(self) -> None:
        """Idempotent."""
        if self._own and self._staged is not None:
            shutil.rmtree(self._staged, ignore_errors=True)
        self._staged, self._own = None, False

    async def pause(self, in_flight: str) -> None:
        await self._engine.pause_generation(mode=in_flight, clear_cache=True)

    async def resume(self) -> None:
        await self._engine.resume_generation()

    async def load(self, version: int) -> None:
        """What was staged, while it is paused."""
        if self._staged is None:
            raise RuntimeError("no weights were staged")
        wrong = await self._engine.collective_rpc("ng_load", args=(self._staged,))
        if named := next((name for name in wrong if name), None):
            raise BadCheckpoint(f"{named} is not finite: there is a NaN or an infinity in it")
        await self._engine.update_weight_version(str(version))
        self.version = version

    async def probe(self) -> tuple[float, ...]:
        """Log-probs of a fixed prompt's tokens: the same in every replica that has the same weights. Not while it is
        paused."""
        from vllm import SamplingParams, TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        length = max(2, min(_PROBE, self._context - 2))
        ids = [position * _BIG_STEP % self._probe_vocabulary for position in range(length)]
        params = SamplingParams(
            max_tokens=1, temperature=1.0, logprobs=0, prompt_logprobs=0, output_kind=RequestOutputKind.FINAL_ONLY
        )
        self._probes += 1
        final: Any = None
        outputs = self._engine.generate(TokensPrompt(prompt_token_ids=ids), params, f"weights-probe-{self._probes}")
        async for output in outputs:
            final = output
        entries = [entry[ids[at]].logprob for at, entry in enumerate(final.prompt_logprobs) if entry is not None]
        (sampled,) = final.outputs[0].logprobs[0].values()
        return (*entries, sampled.logprob)

    async def sleep(self, level: int, in_flight: str) -> None:
        if level and self._needs_sleep_mode and not self._engine.model_config.enable_sleep_mode:
            raise BadCheckpoint("level: the engine was started without engine_args.enable_sleep_mode: true")
        await self._engine.sleep(level, in_flight)

    async def wake(self, level: int) -> None:
        await self._engine.wake_up(None if level else ["scheduling"])

    def versions(self, output: Any) -> tuple[tuple[int, int], ...]:
        """The runs of one finished output, as (start, policy version)."""
        spans = [(span.start, _number(span.version)) for span in output.weight_versions or () if span.end > span.start]
        return tuple(spans) or ((0, self.version),)


def _number(label: str) -> int:
    return int(label) if label.isdecimal() else 0  # vLLM's own name for the weights that it started with
