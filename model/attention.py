"""The core of Quillet: attention, by one head and by many.

Every character asks a question (its query), every character carries a label (its key) and a message (its value). A head
compares the query of one character with the keys of that character and all earlier ones, turns the scores into weights
that sum to one, and passes on the average of the values under those weights.

      x (B, T, C)
      |-- query --> q (B, T, S) --|
      |-- key ----> k (B, T, S) --+-> scores = q kT / sqrt(S)      (B, T, T)
      |                           |-> later characters are hidden
      |                           '-> weights = softmax(scores)    (B, T, T), each row sums to one
      '-- value --> v (B, T, S) -----> output = weights v          (B, T, S)

There are two paths to the same output: `plain_attention`, which reads as above and has the weights to show, and
`fused_attention`, which is torch's own. With a `Cache`, new characters attend to the stored keys and values of the earlier
ones. docs/attention.md leads here step by step.

B batch, T time (characters), Q queries, K keys, C n_embd, H n_head, S head_size. Source: Vaswani et al., "Attention Is All
You Need", 2017, equation 1; rotary positions: Su et al., "RoFormer", 2021, equation 34; query/key normalisation: Henry et
al., "Query-Key Normalization for Transformers", 2020, with a root mean square in place of their length.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.dropout import drop
from model.projection import Projection


def visible_keys(
    query: Tensor, key: Tensor, causal: bool, padding_mask: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Which keys (B, ..., K, S) the queries (B, ..., Q, S) may see, and which queries see none.

    `visible` is True where a query may see a key, in a shape that fits the scores; None: everywhere. If `causal`, the
    queries are the last Q of K positions and see none that are later than their own. `padding_mask` (B, K) is True for
    keys that are real; it says nothing about queries. `blind` (B, ..., Q, 1) is True for queries that see no key; None:
    there are none. They are shown every key, since a softmax over nothing is NaN: what they get is to be zeroed.
    Raises ValueError if `causal` and Q is above K.
    """
    queries, keys = query.size(-2), key.size(-2)
    if causal and queries > keys:
        raise ValueError(f"{queries} queries cannot be the last of {keys} positions")
    visible = None
    if causal and queries > 1:  # the last position sees all
        visible = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)
    if padding_mask is None:
        return visible, None
    real = padding_mask.view(len(padding_mask), *[1] * (query.dim() - 2), keys)
    visible = real if visible is None else visible & real
    blind = ~visible.any(-1, keepdim=True)
    return visible | blind, blind


def plain_attention(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool, padding_mask: Tensor | None = None, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """softmax(mask(query keyT / sqrt(S))) value: (B, ..., Q, S), (B, ..., K, S), (B, ..., K, C) -> (B, ..., Q, C).

    Returns also the weights (B, ..., Q, K). A query that sees no key gets zeros. `dropout` drops weights, though not those
    that are returned; a caller outside training passes 0. All numbers must be finite: a weight of 0 does not hide NaN.
    """
    scores = (query / math.sqrt(query.size(-1))) @ key.transpose(-2, -1)
    visible, blind = visible_keys(query, key, causal, padding_mask)
    if visible is not None:  # adding is faster than filling in
        scores = scores + torch.zeros_like(visible, dtype=scores.dtype).masked_fill(~visible, -math.inf)
    weights = scores.softmax(-1)
    if blind is not None:
        weights = weights.masked_fill(blind, 0)
    return drop(weights, dropout) @ value, weights


def fused_attention(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool, padding_mask: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    """The output of `plain_attention` from torch's own function: where it can, one kernel that never stores the weights."""
    if causal and padding_mask is None and query.size(-2) == key.size(-2):
        return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
    visible, blind = visible_keys(query, key, causal, padding_mask)
    output = F.scaled_dot_product_attention(query, key, value, visible, dropout)
    return output if blind is None else output.masked_fill(blind, 0)


def causal_average(value: Tensor) -> Tensor:
    """The mean of this and all earlier rows, which is attention with equal weights: (..., T, S) -> (..., T, S)."""
    counts = torch.arange(1, value.size(-2) + 1, device=value.device)
    # bfloat16 cannot count to 257, and adds with ever larger errors.
    sums = value.to(torch.promote_types(value.dtype, torch.float32)).cumsum(-2)
    return (sums / counts.unsqueeze(-1)).to(value.dtype)


class CausalSelfAttentionHead(nn.Module):
    """One head, to be read and used alone. The model's own MultiHeadAttention computes n_head of these in one product.

    With causal=False it is an encoder's head, in which every character sees all others.
    """

    def __init__(self, n_embd: int, head_size: int, block_size: int, dropout: float = 0.0, causal: bool = True) -> None:
        super().__init__()
        check_dropout(dropout)
        self.block_size, self.dropout, self.causal = block_size, dropout, causal
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        padding_mask: Tensor | None = None,
        return_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """x (B, T, n_embd) -> output (B, T, head_size), and with return_weights also the weights (B, T, keys).

        Keys and values come from x itself, or from `context` (B, K, n_embd): that is cross-attention, in which each
        query sees the whole context, causal or not, since the two share no order. `padding_mask` (B, keys) is True for
        real characters, and no query hears the others; where none is left to hear, output and weights are zeros. The
        weights are those before dropout. Raises ValueError for T above block_size and for shapes that do not fit.
        """
        source = x if context is None else context
        for name, given in (("x", x), ("context", source)):
            if given.dim() != 3 or given.size(-1) != self.query.in_features:
                wanted = f"(texts, characters, {self.query.in_features})"
                raise ValueError(f"{name} has the shape {tuple(given.shape)}, but must be {wanted}")
        check_length(x.size(1), self.block_size)
        if len(source) != len(x):
            raise ValueError(f"context holds {len(source)} texts and x {len(x)}: they must be as many")
        if padding_mask is not None and (padding_mask.dtype != torch.bool or padding_mask.shape != source.shape[:2]):
            raise ValueError(
                f"padding_mask is {padding_mask.dtype} of shape {tuple(padding_mask.shape)}, "
                f"but must be torch.bool of shape {tuple(source.shape[:2])}: True for real characters"
            )
        if padding_mask is not None:
            source = source.masked_fill(~padding_mask[..., None], 0)  # a weight of 0 would not hide NaN
        query, key, value = self.query(x), self.key(source), self.value(source)
        causal = self.causal and context is None
        dropout = self.dropout if self.training else 0.0
        if return_weights:
            return plain_attention(query, key, value, causal=causal, padding_mask=padding_mask, dropout=dropout)
        return fused_attention(query, key, value, causal=causal, padding_mask=padding_mask, dropout=dropout)


class Cache:
    """What one layer keeps of the characters so far: their values and, unless it averages, their keys, (B, H, K, S) each.

    They lie in arrays with room for `room` characters, so that new ones are written beside the others and none is moved.
    """

    def __init__(self, room: int) -> None:
        self.room, self.length = room, 0
        self.arrays: list[Tensor] = []  # (B, H, room, S)

    def __len__(self) -> int:
        """K, the number of characters so far."""
        return self.length

    def append(self, *new: Tensor) -> list[Tensor]:
        """Add those of new characters, (B, H, T, S) each; returns all that are kept."""
        if not self.arrays:
            self.arrays = [part.new_empty(*part.shape[:2], self.room, part.size(-1)) for part in new]
        start, self.length = self.length, self.length + new[0].size(-2)
        for array, part in zip(self.arrays, new, strict=True):
            array[:, :, start : self.length] = part
        return [array[:, :, : self.length] for array in self.arrays]

    def repeat(self, times: int) -> None:
        """Repeat the one text read so far, so that each copy can go on differently."""
        self.arrays = [array.expand(times, -1, -1, -1).contiguous() for array in self.arrays]


class MultiHeadAttention(nn.Module):
    """n_head heads side by side, joined and projected back: (B, T, n_embd) -> (B, T, n_embd).

    n_head * head_size need not equal n_embd. With `uniform` weights there are no queries and keys: each head passes on
    the plain average of the values so far. `rotary` turns queries and keys by their position, so that scores depend on
    distance; `qk_norm` gives both a root mean square of one, so that scores stay within sqrt(S).
    """

    def __init__(
        self,
        n_embd: int,
        n_head: int,
        head_size: int,
        block_size: int,
        dropout: float = 0.0,
        *,
        rotary: bool = False,
        qk_norm: bool = False,
        uniform: bool = False,
    ) -> None:
        super().__init__()
        check_dropout(dropout)
        self.n_head, self.head_size, self.block_size = n_head, head_size, block_size
        self.dropout, self.qk_norm, self.uniform = dropout, qk_norm, uniform
        self.path = "fused"  # or "plain": which is faster depends on device, precision and dropout
        width = n_head * head_size
        # The rows of one matrix hold query, key and value of every head: three projections for the price of one.
        self.qkv = Projection(n_embd, width if uniform else 3 * width)
        self.projection = Projection(width, n_embd)
        self.rotation = Rotation(head_size, block_size) if rotary else None

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        """With a cache, x are the T characters after those that it holds, and it holds them too from then on.

        Raises ValueError if they are more than block_size together.
        """
        batch, time, _ = x.shape
        past = 0 if cache is None else len(cache)
        check_length(past + time, self.block_size)
        parts = self._projections(x, past)
        if self.uniform:
            (value,) = parts if cache is None else cache.append(*parts)
            heads = causal_average(value)[:, :, past:]
        else:
            query, *kept = parts
            key, value = kept if cache is None else cache.append(*kept)
            dropout = self.dropout if self.training else 0.0
            if self.path == "plain":
                heads, _ = plain_attention(query, key, value, causal=True, dropout=dropout)
            else:
                heads = fused_attention(query, key, value, causal=True, dropout=dropout)
        joined = heads.transpose(1, 2).reshape(batch, time, self.n_head * self.head_size)
        return self.projection(joined)

    def weights(self, x: Tensor) -> Tensor:
        """The weights (B, H, T, T) of every head, to be looked at; no dropout."""
        if not self.uniform:
            return plain_attention(*self._projections(x, past=0), causal=True)[1]
        equal = torch.ones(x.size(1), x.size(1), device=x.device).tril()
        return (equal / equal.sum(-1, keepdim=True)).expand(len(x), self.n_head, -1, -1)

    def _projections(self, x: Tensor, past: int) -> tuple[Tensor, ...]:
        """Query, key and value, (B, H, T, S) each, of characters after `past` others; with uniform weights value alone."""
        batch, time, _ = x.shape
        parts = (
            self.qkv(x).view(batch, time, 1 if self.uniform else 3, self.n_head, self.head_size).permute(2, 0, 3, 1, 4)
        )
        if self.uniform:
            return tuple(parts)
        queries_and_keys = parts[:2]  # what is done to both is done at once, which is faster
        if self.qk_norm:
            queries_and_keys = F.rms_norm(queries_and_keys, (self.head_size,))
        if self.rotation is not None:
            queries_and_keys = self.rotation(queries_and_keys, past)
        return *queries_and_keys, parts[2]


class Rotation(nn.Module):
    """Rotary positions: pair i of the S numbers at position t is turned by t / 10000^(2i / S): (..., T, S) -> (..., T, S).

    A turned query times a turned key depends on the distance between the two alone. Pair i is the numbers i and i + S / 2
    (the paper pairs neighbours). S must be even. The first row of x stands at position `past`.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, head_size: int, block_size: int) -> None:
        super().__init__()
        if head_size % 2:
            raise ValueError(f"rotary positions turn pairs of numbers, so head_size={head_size} must be even")
        frequencies = 10000.0 ** (-torch.arange(0, head_size, 2) / head_size)
        angles = torch.outer(torch.arange(block_size), frequencies)  # (block_size, S / 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor, past: int = 0) -> Tensor:
        here = slice(past, past + x.size(-2))
        cos, sin = self.cos[here].to(x.dtype), self.sin[here].to(x.dtype)
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


def check_length(time: int, block_size: int) -> None:
    """Raises ValueError if a window is longer than the model was built for."""
    if time > block_size:
        raise ValueError(
            f"the window has {time} characters, but block_size is {block_size}: pass the last {block_size}"
        )


def check_dropout(dropout: float) -> None:
    """Raises ValueError if it is no share that can be dropped."""
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout={dropout} must be at least 0 and below 1")
