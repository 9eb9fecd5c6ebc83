"""Computing in half the bits: bfloat16 or float16 where nearly all of the work is, float32 wherever it decides the result.

The matrices of the blocks are cast once for a step or an evaluation, and so is what they are multiplied with. Embeddings,
the stream between blocks, head, bigram table, losses, gradients that the optimizer gets, its memory and the weights
themselves stay float32 (Micikevicius et al., "Mixed Precision Training", 2018).
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from model.language_model import block_matrices


def in_precision(network: nn.Module, precision: torch.dtype) -> Callable[..., Tensor]:
    """What `network` computes, with the blocks' matrices as they are now, cast to `precision`: ids (B, T) -> (B, T, V).

    `network` is a LanguageModel or one compiled. Logits are float32, and so are the gradients that its weights get.
    """
    if precision == torch.float32:
        return network
    cast = {name: weight.to(precision) for name, weight in block_matrices(network).items()}
    return lambda *inputs: functional_call(network, cast, inputs)


def loss_scale(precision: torch.dtype, characters: int) -> float:
    """What a loss, the mean over so many characters, is multiplied with before its gradients are computed; they are divided
    by it after.

    In float16, whose least number is 6e-8, gradients of a mean would be lost: so about those of a sum are computed. A power of
    two is exact, and one that is always the same lets a run go on as it would have. bfloat16 reaches as far as float32.
    """
    return 2.0 ** max(10, math.ceil(math.log2(characters))) if precision == torch.float16 else 1.0


def unscale_gradients(model: nn.Module, scale: float) -> None:
    """Divide all gradients by what the loss was multiplied with."""
    if scale != 1:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= scale
