"""The core of Quillet: causal self-attention, one head and many.

Every character asks a question (its query), every character carries a label (its key) and a message (its value). A head
compares the query of one character with the keys of that character and all earlier ones, turns the scores into weights
that sum to one, and passes on the average of the values under those weights.

      x (B, T, C)
      |-- query --> q (B, T, S) --|
      |-- key ----> k (B, T, S) --+-> scores = q kT / sqrt(S)      (B, T, T)
      |                           |-> later characters are hidden
      |                           '-> weights = softmax(scores)    (B, T, T), each row sums to one
      '-- value --> v (B, T, S) -----> output = weights v          (B, T, S)

B batch, T time (characters), C n_embd, H n_head, S head_size. Source: Vaswani et al., "Attention Is All You Need", 2017,
equation 1; rotary positions: Su et al., "RoFormer", 2021, equation 34; query/key normalisation: Henry et al., 2020.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def causal_attention(query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0) -> Tensor:
    """softmax(mask(query keyT / sqrt(S))) value, with one fused kernel: (..., T, S) three times -> (..., T, S).

    `dropout` drops weights; a caller outside training passes 0, for the kernel knows nothing of evaluation mode.
    """
    return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)


def causal_average(value: Tensor) -> Tensor:
    """The mean of this and all earlier rows, which is attention with equal weights: (..., T, S) -> (..., T, S)."""
    counts = torch.arange(1, value.size(-2) + 1, device=value.device)
    # Half precision cannot count to 257, and adds with ever larger errors.
    return (value.float().cumsum(-2) / counts.unsqueeze(-1)).to(value.dtype)


class CausalSelfAttentionHead(nn.Module):
    """One head, to be read and used alone: (B, T, n_embd) -> (B, T, head_size), T at most block_size.

    The model's own MultiHeadAttention computes n_head of these in one product. Raises ValueError for a longer input.
    """

    def __init__(self, n_embd: int, head_size: int, block_size: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.block_size = block_size
        self.dropout = dropout
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        check_length(x.size(1), self.block_size)
        dropout = self.dropout if self.training else 0.0
        return causal_attention(self.query(x), self.key(x), self.value(x), dropout)


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
        self.n_head, self.head_size, self.block_size = n_head, head_size, block_size
        self.dropout, self.qk_norm, self.uniform = dropout, qk_norm, uniform
        width = n_head * head_size
        # The rows of one matrix hold query, key and value of every head: three projections for the price of one.
        self.qkv = nn.Linear(n_embd, width if uniform else 3 * width, bias=False)
        self.projection = nn.Linear(width, n_embd, bias=False)
        self.rotation = Rotation(head_size, block_size) if rotary else None

    def forward(self, x: Tensor) -> Tensor:
        batch, time, _ = x.shape
        check_length(time, self.block_size)
        parts = (
            self.qkv(x).view(batch, time, -1, self.n_head, self.head_size).permute(2, 0, 3, 1, 4)
        )  # (1 or 3, B, H, T, S)
        heads = causal_average(parts[0]) if self.uniform else self._softmax_heads(*parts)
        joined = heads.transpose(1, 2).reshape(batch, time, -1)  # (B, T, H * S)
        return self.projection(joined)

    def _softmax_heads(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self.qk_norm:
            query, key = F.rms_norm(query, (self.head_size,)), F.rms_norm(key, (self.head_size,))
        if self.rotation is not None:
            query, key = self.rotation(query), self.rotation(key)
        return causal_attention(query, key, value, self.dropout if self.training else 0.0)


class Rotation(nn.Module):
    """Rotary positions: pair i of the S numbers at position t is turned by t / 10000^(2i / S): (..., T, S) -> (..., T, S).

    A turned query times a turned key depends on the distance between the two alone. S must be even.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, head_size: int, block_size: int) -> None:
        super().__init__()
        frequencies = 10000.0 ** (-torch.arange(0, head_size, 2) / head_size)
        angles = torch.outer(torch.arange(block_size), frequencies)  # (block_size, S / 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        cos, sin = self.cos[: x.size(-2)].to(x.dtype), self.sin[: x.size(-2)].to(x.dtype)
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


def check_length(time: int, block_size: int) -> None:
    """Raises ValueError if a window is longer than the model was built for."""
    if time > block_size:
        raise ValueError(
            f"the window has {time} characters, but block_size is {block_size}: pass the last {block_size}"
        )
