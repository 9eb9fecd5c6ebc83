"""The model before its first step."""

import torch

from configs.schema import TrainConfig, UserError
from data.corpus import Corpus
from data.ngrams import bigram_log_probabilities
from model.language_model import LanguageModel

_LARGEST_BIGRAM_VOCABULARY = 8192  # above it the table, its gradient and AdamW's two memories take over a gigabyte


def new_model(config: TrainConfig, corpus: Corpus) -> LanguageModel:
    """An untrained model, its bigram table counted from the training part where the configuration says so."""
    vocab_size = corpus.tokenizer.vocab_size
    if config.model.bigram and vocab_size > _LARGEST_BIGRAM_VOCABULARY:
        raise UserError(
            f"a bigram table for {vocab_size:,} distinct characters would not fit (at most {_LARGEST_BIGRAM_VOCABULARY:,}): "
            "set model.bigram=false"
        )
    model = LanguageModel(config.model, vocab_size)
    if model.bigram is not None and config.model.bigram_init == "counts":
        table = bigram_log_probabilities(corpus.train, vocab_size)
        model.bigram.weight.data.copy_(torch.from_numpy(table))
    return model
