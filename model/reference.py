"""Attention as its formulas read: loops over single numbers, then the same as matrices. Slow and plain, in float64.

Everything faster in this project is held equal to these by the tests. B batch, T time, Q queries, K keys, C channels,
S head_size. Sources: for the average and for softmax(X XT) X, the sums written out; for scaled dot-product attention,
Vaswani et al., "Attention Is All You Need", 2017, equation 1.
"""

import math

import torch
from torch import Tensor


def causal_average_by_loop(x: Tensor) -> Tensor:
    """Row t is the mean of rows 0 to t of the same text: (B, T, C) -> (B, T, C)."""
    x = x.double()
    average = torch.zeros_like(x)
    for b in range(x.size(0)):
        for t in range(x.size(1)):
            for s in range(t + 1):
                average[b, t] += x[b, s] / (t + 1)
    return average


def causal_average_by_matrix(x: Tensor) -> Tensor:
    """The same as one product: row t of a triangular matrix (T, T) holds t + 1 equal weights that sum to one."""
    time = x.size(1)
    later = torch.ones(time, time).triu(1).bool()
    weights = torch.zeros(time, time, dtype=torch.float64).masked_fill(later, -math.inf).softmax(-1)
    return weights @ x.double()


def unweighted_attention_by_loop(x: Tensor) -> Tensor:
    """softmax(X XT) X, one number at a time: (T, C) -> (T, C). Nothing learned, no mask, no scale.

    Row i is w_i1 x_1 + ... + w_iT x_T, where w_i is the softmax of the products x_i . x_1 to x_i . x_T.
    """
    x = x.double()
    time, channels = x.shape
    output = torch.zeros_like(x)
    for i in range(time):
        scores = [_dot(x[i], x[j]) for j in range(time)]
        for j, weight in enumerate(_softmax(scores)):
            for c in range(channels):
                output[i, c] += weight * x[j, c]
    return output


def unweighted_attention_by_matrix(x: Tensor) -> Tensor:
    """The same as two products: (..., T, C) -> (..., T, C)."""
    x = x.double()
    return (x @ x.transpose(-2, -1)).softmax(-1) @ x


def attention_by_loop(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool, padding_mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """One head of one text: query (Q, S), key (K, S), value (K, C) -> output (Q, C) and weights (Q, K).

    Query t gives key s the weight softmax over s of query_t . key_s / sqrt(S). A key that it may not see has no part in
    the softmax and the weight 0; so has every key where it may see none. `padding_mask` (K,) is True for keys that are
    real. If `causal`, the queries are the last Q of K positions and see none that are later than their own. Keys and
    values from elsewhere than the queries, of any number, are cross-attention.
    """
    query, key, value = query.double(), key.double(), value.double()
    queries, keys, head_size = len(query), len(key), query.size(1)
    output = torch.zeros(queries, value.size(1), dtype=torch.float64)
    weights = torch.zeros(queries, keys, dtype=torch.float64)
    for t in range(queries):
        position = keys - queries + t
        visible = [
            s for s in range(keys) if (not causal or s <= position) and (padding_mask is None or bool(padding_mask[s]))
        ]
        scores = [_dot(query[t], key[s]) / math.sqrt(head_size) for s in visible]
        for s, weight in zip(visible, _softmax(scores), strict=True):
            weights[t, s] = weight
            output[t] += weight * value[s]
    return output, weights


def _dot(left: Tensor, right: Tensor) -> float:
    return sum(a * b for a, b in zip(left.tolist(), right.tolist(), strict=True))


def _softmax(scores: list[float]) -> list[float]:
    largest = max(scores, default=0.0)  # subtracted before exp, which changes no weight and cannot overflow
    exponentials = [math.exp(score - largest) for score in scores]
    return [exponential / sum(exponentials) for exponential in exponentials]
