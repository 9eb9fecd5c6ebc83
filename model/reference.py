"""Attention as the formula reads, with loops over scalars and rows in float64. Slow and plain: what the tests trust."""

import math

import torch
from torch import Tensor


def causal_attention_by_loop(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """One head of one text: (T, S) three times -> (T, S) in float64.

    Row t is the sum over s <= t of w_s value_s, where w is the softmax over s <= t of query_t . key_s / sqrt(S).
    """
    query, key, value = query.double(), key.double(), value.double()
    time, head_size = query.shape
    output = torch.zeros(time, value.size(1), dtype=torch.float64)
    for t in range(time):
        scores = [
            sum(float(query[t, i] * key[s, i]) for i in range(head_size)) / math.sqrt(head_size) for s in range(t + 1)
        ]
        largest = max(scores)  # subtracted before exp, which changes no weight and cannot overflow
        exponentials = [math.exp(score - largest) for score in scores]
        for s, exponential in enumerate(exponentials):
            output[t] += exponential / sum(exponentials) * value[s]
    return output


def causal_average_by_loop(value: Tensor) -> Tensor:
    """Row t is the mean of rows 0 to t: (T, S) -> (T, S) in float64."""
    return torch.stack([value[: t + 1].double().sum(0) / (t + 1) for t in range(len(value))])
