"""The language model: a bigram table plus a stack of attention blocks, from character ids to next-character logits.

    x      = token embedding (+ positions) (+ embeddings of the previous n_previous characters) (+ n-gram embedding)
    x      = x + attention(norm(x)), then x + feed_forward(norm(x)), for each block
    logits = head(norm(x)) + bigram[ids]

Every rung of the ladder, from `model=bigram` to `model=gpt`, is this one class with other sizes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from configs.schema import ModelConfig
from model.attention import Cache, MultiHeadAttention, check_length
from model.dropout import Dropout, drop
from model.projection import Projection


class ModelCache:
    """What a model keeps of the characters that it has read, so that those that follow can be read alone."""

    def __init__(self, n_layer: int, room: int) -> None:
        self.ids: Tensor | None = None  # (B, K)
        self.layers = [Cache(room) for _ in range(n_layer)]

    def __len__(self) -> int:
        """K, the number of characters so far. Raises ValueError if a pass was broken off, so that layers differ."""
        length = 0 if self.ids is None else self.ids.size(1)
        if any(len(layer) != length for layer in self.layers):
            raise ValueError(
                "a pass with this cache was broken off, and some layers know more than others: make a new one"
            )
        return length

    def append(self, ids: Tensor) -> None:
        """Note the ids (B, T) of characters that every layer has read."""
        self.ids = ids if self.ids is None else torch.cat((self.ids, ids), dim=1)

    def repeat(self, times: int) -> None:
        """Repeat the one text read so far, so that each copy can go on differently."""
        assert self.ids is not None
        self.ids = self.ids.expand(times, -1)
        for layer in self.layers:
            layer.repeat(times)


class LanguageModel(nn.Module):
    """ids (B, T) -> logits (B, T, V) of the character after each position; T at most block_size.

    Every output projection starts at zero: before training the logits are those of the bigram table alone, and each
    block is the identity.
    """

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        self.bigram = nn.Embedding(vocab_size, vocab_size) if config.bigram else None
        if self.bigram is not None:
            nn.init.zeros_(self.bigram.weight)
        self.stream = Stream(config, vocab_size) if config.n_layer else None

    def forward(self, ids: Tensor, cache: ModelCache | None = None) -> Tensor:
        """With a cache, ids are the T characters after those that it holds, and it holds them too from then on.

        Raises ValueError if they are more than block_size together.
        """
        check_length(ids.size(1) + (0 if cache is None else len(cache)), self.config.block_size)
        logits = None if self.stream is None else self.stream(ids, cache)
        if self.bigram is not None:
            logits = self.bigram(ids) if logits is None else logits + self.bigram(ids)
        assert logits is not None  # the schema refuses a model with neither
        if cache is not None:
            cache.append(ids)
        return logits

    def new_cache(self) -> ModelCache:
        """An empty cache for this model."""
        return ModelCache(self.config.n_layer, room=self.config.block_size)

    @torch.no_grad()
    def attention_weights(self, ids: Tensor) -> Tensor:
        """ids (B, T) -> the weights (n_layer, B, H, T, T) of every head, to be looked at; no dropout."""
        check_length(ids.size(1), self.config.block_size)
        weights: list[Tensor] = []
        if self.stream is not None:
            with evaluating(self):
                x = self.stream.embedded(ids)
                for block in self.stream.blocks:
                    assert isinstance(block, Block)
                    weights.append(block.attention.weights(normalised(x, self.config.norm)))
                    x = block(x)
        return torch.stack(weights) if weights else torch.empty(0, len(ids), 0, ids.size(1), ids.size(1))

    def use_attention(self, path: str) -> None:
        """Compute attention by the path `plain` or `fused`: the same output but for rounding."""
        for module in self.modules():
            if isinstance(module, MultiHeadAttention):
                module.path = path

    def sizes(self) -> dict[str, Any]:
        """What it takes to build this model again: the plain values of its ModelConfig and vocab_size."""
        return {**asdict(self.config), "vocab_size": self.vocab_size}

    def parameter_counts(self) -> dict[str, int]:
        """Trained numbers by part, in the order in which data meets them; the parts sum to the whole."""
        counts = dict.fromkeys(("embeddings", "attention", "feed-forward", "head", "bigram table"), 0)
        for name, parameter in self.named_parameters():
            part = next(part for pattern, part in _PARTS.items() if pattern in name)
            counts[part] += parameter.numel()
        return counts


_PARTS = {
    "embedding": "embeddings",
    "attention": "attention",
    "feed_forward": "feed-forward",
    "head": "head",
    "bigram": "bigram table",
}


class Stream(nn.Module):
    """Embeddings, blocks and head: ids (B, T) -> logits (B, T, V)."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.norm = config.norm
        self.token_embedding = nn.Embedding(vocab_size, config.n_embd)
        self.previous_embeddings = nn.ModuleList(
            nn.Embedding(vocab_size, config.n_embd) for _ in range(config.n_previous)
        )
        order, rows = config.n_gram_order, config.n_gram_rows
        self.n_gram_embedding = NGramEmbedding(order, rows, config.n_embd, config.n_gram_dropout) if order > 1 else None
        learned = config.positions == "learned"
        self.position_embedding = nn.Embedding(config.block_size, config.n_embd) if learned else None
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.head = nn.Linear(config.n_embd, vocab_size, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=config.embedding_std)
        nn.init.zeros_(self.head.weight)

    def forward(self, ids: Tensor, cache: ModelCache | None = None) -> Tensor:
        x = self.dropout(self.embedded(ids, None if cache is None else cache.ids))
        for number, block in enumerate(self.blocks):
            x = block(x, None if cache is None else cache.layers[number])
        return self.head(normalised(x, self.norm))

    def embedded(self, ids: Tensor, earlier: Tensor | None = None) -> Tensor:
        """What the first block gets of ids (B, T) that follow the ids `earlier` (B, K): (B, T, C)."""
        text = ids if earlier is None else torch.cat((earlier, ids), dim=1)
        past = text.size(1) - ids.size(1)
        x = self.token_embedding(ids)
        recent = text[:, max(0, past - len(self.previous_embeddings)) :]
        for distance, embedding in enumerate(self.previous_embeddings, start=1):
            # Position t hears the character `distance` before it; the first positions of a window have none.
            before = F.pad(embedding(recent[:, :-distance]), (0, 0, min(distance, recent.size(1)), 0))
            x = x + before[:, before.size(1) - ids.size(1) :]
        if self.n_gram_embedding is not None:
            recent = text[:, max(0, past + 1 - self.n_gram_embedding.order) :]
            x = x + self.n_gram_embedding(recent)[:, recent.size(1) - ids.size(1) :]
        if self.position_embedding is not None:
            x = x + self.position_embedding.weight[past : text.size(1)]
        return x


class NGramEmbedding(nn.Module):
    """The sum of a row for each of the last 2, 3, ... `order` characters: ids (B, T) -> (B, T, C).

    All sequences share one table of so many rows. Which is whose says a hash, so some share one, and the blocks learn to
    tell them apart by the rest of the sum. `dropout` is the share of rows left out in training, where the model would
    otherwise learn long sequences by heart.
    """

    def __init__(self, order: int, rows: int, n_embd: int, dropout: float) -> None:
        super().__init__()
        self.order, self.dropout = order, dropout
        self.table = nn.Embedding(rows, n_embd)

    def forward(self, ids: Tensor) -> Tensor:
        rows, weight = self.rows(ids).flatten(0, 1), self.table.weight  # (B * T, order - 1)
        # On a CPU most time would go into the gradients of rows that did not come by. The compiler knows no sparse ones.
        sparse = weight.device.type == "cpu" and not torch.compiler.is_compiling()
        left_out = self.training and self.dropout > 0
        kept = drop(torch.ones(rows.shape, device=rows.device), self.dropout) if left_out else None
        x = F.embedding_bag(rows, weight, mode="sum", sparse=sparse, per_sample_weights=kept)
        return x.view(*ids.shape, weight.size(1))

    def rows(self, ids: Tensor) -> Tensor:
        """Which rows stand for the sequences that end at each of ids (B, T), shortest first: (B, T, order - 1)."""
        characters = ids + 1  # 0: before the window, where nothing is known
        code, rows = characters, []
        for distance in range(1, self.order):
            earlier = F.pad(characters, (distance, 0))[:, : ids.size(1)]
            code = (code * 1_000_003 + earlier) % 2_147_483_647  # a polynomial modulo a prime: every character counts
            rows.append((code * 2_654_435_761 >> 16) % len(self.table.weight))  # neighbours are torn apart
        return torch.stack(rows, dim=-1)


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x)): (B, T, C) -> (B, T, C)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = config.norm
        self.attention = MultiHeadAttention(
            config.n_embd,
            config.n_head,
            config.head_size,
            config.block_size,
            config.dropout,
            rotary=config.positions == "rotary",
            qk_norm=config.qk_norm,
            uniform=config.attention == "uniform",
        )
        nn.init.zeros_(self.attention.projection.weight)
        self.feed_forward = FeedForward(config.n_embd, config.activation) if config.feed_forward else None
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        x = x + self.dropout(self.attention(self._input(x), cache))
        if self.feed_forward is not None:
            x = x + self.dropout(self.feed_forward(self._input(x)))
        return x

    def _input(self, x: Tensor) -> Tensor:
        """Normalised, and in the number format of the matrices, which may be half as long as that of x."""
        return normalised(x, self.norm).to(self.attention.projection.weight.dtype)


class FeedForward(nn.Module):
    """Widen four times, activate, narrow again, each character by itself: (B, T, C) -> (B, T, C)."""

    def __init__(self, n_embd: int, activation: str) -> None:
        super().__init__()
        self.activation = activation
        self.widen = Projection(n_embd, 4 * n_embd)
        self.narrow = Projection(4 * n_embd, n_embd)
        nn.init.zeros_(self.narrow.weight)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.widen(x)
        if self.activation == "gelu":
            return self.narrow(F.gelu(hidden))
        if self.activation == "relu":
            return self.narrow(F.relu(hidden))
        return self.narrow(SquaredReLU.apply(hidden))  # type: ignore[no-untyped-call]


class SquaredReLU(torch.autograd.Function):
    """max(0, x)^2, with its derivative 2 max(0, x) times the gradient in one pass, where autograd would make four."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        positive = F.relu(x)
        ctx.save_for_backward(positive)
        return positive.square()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (positive,) = ctx.saved_tensors
        return torch.addcmul(positive.new_zeros(()), positive, gradient, value=2)


def normalised(x: Tensor, norm: str) -> Tensor:
    """Each row of (..., C) with mean 0 and variance 1 (layer_norm), or with a mean square of 1 (rms_norm)."""
    return F.layer_norm(x, (x.size(-1),)) if norm == "layer_norm" else F.rms_norm(x, (x.size(-1),))


def block_matrices(network: nn.Module) -> dict[str, nn.Parameter]:
    """The matrices of the blocks, where nearly all computing is done, by their names in a LanguageModel or its wrapper."""
    return {name: weight for name, weight in network.named_parameters() if ".blocks." in name}


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Dropout off as long as this is entered; then every part's mode is as before, even after an exception."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
