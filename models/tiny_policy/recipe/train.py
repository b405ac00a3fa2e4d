"""Trains the embedded model from nothing: first its tokenizer, then its weights.

usage: train.py FOLDER [--steps N] [--seed N] [--threads N]

It stops after a number of steps, not after a time, and seeds and thread count are fixed: on one machine two runs give
the same weights. The loss counts the assistant's own tokens only.

The lessons come in an order that the model learns quickly from: first to repeat a single word, which is what every task
rests on; then to do the tasks right; last to be of two minds about it, as data.py says.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from pathlib import Path
from random import Random
from typing import NamedTuple

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import data
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.functional import cross_entropy
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

STEPS = 1500
REPEATING, SURE = 1 / 6, 2 / 3  # the shares of the steps after which the first and the second lesson are over
BATCH = 16
SHORT_BATCH = 64  # of repetitions
LEARNING_RATE = 3e-3
CLIP = 20.0  # rarely reached: clipping would make some kinds of conversation count less
IGNORED = -100  # the label that cross_entropy leaves out

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKERS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
# Names and numbers never take the space before them, so each is the same token wherever it stands: that is what makes
# copying them learnable for so small a model.
WORDS = r" ?[a-z_]+|[A-Z][a-zA-Z]*|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+|\p{L}+"


def make_tokenizer(rng: Random) -> PreTrainedTokenizerFast:
    """Byte-level BPE over the generator's own texts; each word, city and number in them becomes one token."""
    bpe = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(WORDS), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    bpe.decoder = decoders.ByteLevel()
    untrained = with_template(bpe)
    texts = [render(untrained, data.conversation(rng, data.setting(rng))) for _ in range(4000)]
    texts += [str(number) for number in range(2 * data.LARGEST_ADDEND + 1)] + data.CITIES
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=2048, special_tokens=SPECIAL + MARKERS, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(texts, trainer)
    # Special tokens vanish when a text is decoded for people; the markers stay, since parsers look for them.
    bpe.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    bpe.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKERS])
    return with_template(bpe)


def with_template(bpe: Tokenizer) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = (Path(__file__).parent / "template.jinja").read_text()
    return tokenizer


def render(tokenizer: PreTrainedTokenizerFast, conversation: data.Conversation) -> str:
    return tokenizer.apply_chat_template(conversation.messages, tools=conversation.tools, tokenize=False)


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=math.ceil(len(tokenizer) / 64) * 64,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        rope_theta=10000.0,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(config)


class Batch(NamedTuple):
    """Rows that begin alike: `shared` is what all of them begin with, `inputs` and `labels` is what follows it."""

    shared: torch.Tensor
    inputs: torch.Tensor
    labels: torch.Tensor


class Examples:
    """An endless supply of batches.

    The conversations of a batch have one setting, so that the long text in front of them (the tools) is computed once
    a batch and not once a row, and they are of similar length, so that little is spent on padding.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, rng: Random) -> None:
        self._tokenizer, self._rng = tokenizer, rng
        self._ready: dict[data.Odds, list[Batch]] = {}
        self._assistant = tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False)
        self._user = tokenizer.encode("<|im_start|>user\n", add_special_tokens=False)

    def repetitions(self) -> Batch:
        return self._batch(self._encoded([data.repetition(self._rng) for _ in range(SHORT_BATCH)]))

    def conversations(self, odds: data.Odds) -> Batch:
        ready = self._ready.setdefault(odds, [])
        if not ready:
            ready += [batch for _ in range(8) for batch in self._of_one_setting(odds)]
            self._rng.shuffle(ready)
        return ready.pop()

    def _of_one_setting(self, odds: data.Odds) -> list[Batch]:
        start = data.setting(self._rng)
        rows = self._encoded([data.conversation(self._rng, start, odds) for _ in range(4 * BATCH)])
        rows.sort(key=len)
        return [self._batch(rows[begin : begin + BATCH]) for begin in range(0, len(rows), BATCH)]

    def _encoded(self, conversations: list[data.Conversation]) -> list[list[int]]:
        texts = [render(self._tokenizer, conversation) for conversation in conversations]
        encodings = self._tokenizer.backend_tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def _batch(self, rows: list[list[int]]) -> Batch:
        begin, longest = self._index(rows[0], self._user), max(map(len, rows))
        ids = torch.full((len(rows), longest), self._tokenizer.pad_token_id)
        labels = torch.full((len(rows), longest), IGNORED)
        for row, tokens in enumerate(rows):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            labels[row, : len(tokens)] = torch.tensor(self.labels(tokens))
        return Batch(ids[:1, :begin], ids[:, begin:], labels[:, begin:])

    def labels(self, ids: list[int]) -> list[int]:
        """The assistant's tokens, with the end token of each of its turns; IGNORED for all others."""
        labels, speaking, size = [], False, len(self._assistant)
        for index, token in enumerate(ids):
            labels.append(token if speaking else IGNORED)
            if token == self._tokenizer.eos_token_id:
                speaking = False
            elif ids[index - size + 1 : index + 1] == self._assistant:
                speaking = True
        return labels

    def _index(self, ids: list[int], part: list[int]) -> int:
        return next(index for index in range(len(ids)) if ids[index : index + len(part)] == part)


def loss_of(model: Qwen3ForCausalLM, batch: Batch) -> torch.Tensor:
    cache = None
    if batch.shared.numel():
        cache = model.model(input_ids=batch.shared, use_cache=True).past_key_values
        cache.batch_repeat_interleave(len(batch.inputs))
    hidden = model.model(input_ids=batch.inputs, past_key_values=cache).last_hidden_state[:, :-1]
    # The output layer runs where a token counts, and nowhere else: it is a third of the cost otherwise.
    counted = batch.labels[:, 1:] != IGNORED
    total = cross_entropy(model.lm_head(hidden[counted]), batch.labels[:, 1:][counted], reduction="sum")
    # By the row and not by the token: in a batch of short conversations (the guesses) a token would weigh more than in
    # one of long conversations (the calls), and the model would guess more often than it is shown.
    return total / len(batch.inputs)


def learning_rate(step: int, steps: int) -> float:
    warm_up = min(1.0, (step + 1) / 100)
    return LEARNING_RATE * warm_up * (0.02 + 0.49 * (1 + math.cos(math.pi * step / steps)))


def lesson(examples: Examples, done: float) -> Batch:
    if done < REPEATING:
        return examples.repetitions()
    return examples.conversations(data.SURE if done < SURE else data.MIXED)


def train(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, steps: int, rng: Random) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01, betas=(0.9, 0.98))
    examples, began = Examples(tokenizer, rng), time.monotonic()
    model.train()
    losses: list[float] = []
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = learning_rate(step, steps)
        loss = loss_of(model, lesson(examples, step / steps))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if (step + 1) % 100 == 0:
            mean, seconds = sum(losses[-100:]) / 100, time.monotonic() - began
            print(f"step {step + 1}/{steps} loss {mean:.4f} {seconds:.0f} s", flush=True)


def save(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    ends = [tokenizer.eos_token_id, tokenizer.pad_token_id]
    GenerationConfig(
        eos_token_id=ends, pad_token_id=tokenizer.pad_token_id, do_sample=True, temperature=1.0
    ).save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the embedded model into a folder.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    rng = Random(args.seed)
    tokenizer = make_tokenizer(rng)
    model = make_model(tokenizer)
    print(f"{len(tokenizer)} tokens, {sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    train(model, tokenizer, args.steps, rng)
    save(model, tokenizer, args.folder)


if __name__ == "__main__":
    main()
