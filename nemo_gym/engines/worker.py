"""What a vLLM worker of ours can do beside vLLM's own: take new weights from a folder, whole.

Imported by vLLM, in the process of each worker (`worker_extension_cls`).
"""

from __future__ import annotations

from typing import Any


class WeightsWorker:
    """Mixed into vLLM's worker class."""

    model_runner: Any

    def ng_load(self, folder: str) -> str | None:
        """The name of a parameter that is not finite afterwards; None: all are."""
        self.model_runner.reload_weights(weights_path=folder)
        model = self.model_runner.get_model()
        _repack(model)
        return _not_finite(model)


def _repack(model: Any) -> None:
    """On CPU an output layer multiplies with a packed copy of its weight, which a reload leaves as it was where the
    layer is tied to the embedding: no error, and wrong log-probs wherever the model is not sure."""
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    # An output layer (ParallelLMHead) is one too.
    layers = [module for module in model.modules() if isinstance(module, VocabParallelEmbedding)]
    packed = [layer for layer in layers if hasattr(layer, "cpu_linear")]
    if packed:  # never on a GPU
        from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

        for layer in packed:
            dispatch_cpu_unquantized_gemm(layer, remove_weight=False)


def _not_finite(model: Any) -> str | None:
    """A parameter with a NaN or an infinity in it."""
    import torch

    plain = (torch.float32, torch.float16, torch.bfloat16)
    parameters = model.named_parameters()
    return next((name for name, one in parameters if one.dtype in plain and not torch.isfinite(one).all()), None)
