"""Implements AllenNLP's decoding of probabilities to the last bit."""

import jax
import numpy as np

from elmo_jax.tasks.srl.decode import Rules, viterbi

fast_viterbi = jax.jit(viterbi)


def decode_as_allennlp(scores, mask, rules):
    """Returns AllenNLP's tags, with its rounding.

    AllenNLP marks the start of a sentence by adding 100,000 to all path scores, after which float32 keeps steps of
    1/128 only. Of paths that become equal its `topk` takes the last one; `argmax` takes the first of the tags in
    reverse order.
    """
    turned = Rules(rules.transitions[::-1, ::-1], rules.starts[::-1] + np.float32(100_000))
    tags, _ = fast_viterbi(scores[..., ::-1], mask, turned)
    return np.where(mask, scores.shape[-1] - 1 - np.asarray(tags), 0)
