"""Implements semantic role labelling, with one example per predicate: its model, and the scores of srl-eval.pl.

The model has eight interleaved highway LSTM layers over words and a predicate flag (He et al. 2017).

Shapes: B sentences, one per predicate, T words, D input features per word, F numbers of the flag's embedding, H
units, E numbers of the ELMo mix at the output, N tags.
"""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from elmo_jax.settings import fraction, setting
from elmo_jax.tasks.core.config import TaskDataConfig
from elmo_jax.tasks.core.tagging import TaggingTask, Tags
from elmo_jax.tasks.core.task import Arrays, Embedded, Labels, Shape, TaskOutput, Use
from elmo_jax.tasks.formats.scores import LabelScores, score_labels
from elmo_jax.tasks.formats.sources import files_of
from elmo_jax.tasks.formats.tags import brackets, spans
from elmo_jax.tasks.layers.crf import bio_transitions, viterbi_decode
from elmo_jax.tasks.layers.recurrent import HighwayLSTM
from elmo_jax.tasks.srl.reader import Example, read_bio, read_columns


@dataclasses.dataclass(frozen=True)
class SRLModel:
    """The settings of the model without words and ELMo; defaults are those of He et al. (2017) and the ELMo paper."""

    flag_dim: int = setting(100, "The dimension of the embedding of the predicate flag.", least=1)
    layers: int = setting(8, "The number of highway LSTM layers; even ones run forward, odd ones backward.", least=1)
    units: int = setting(300, "The number of units per layer.", least=1)
    dropout: float = fraction(0.1, "The fraction of units dropped in training, with one mask per layer and sentence.")


class RoleTagger(nn.Module):
    """Tags the arguments of one predicate per row."""

    config: SRLModel
    tags: Sequence[str]  # the BIO tags in the order of their ids

    @nn.compact
    def __call__(self, sentence: Embedded, arrays: dict[str, jax.Array], *, deterministic: bool = True) -> TaskOutput:
        """Computes the loss, `log_probabilities` [B, T, N], and the best `tags` int32 [B, T], -1 at padding.

        `arrays` has `flags` int32 [B, T], 1 for the predicate, and the gold `tags` int32 [B, T].
        """
        config = self.config
        flags = nn.Embed(2, config.flag_dim, embedding_init=nn.initializers.glorot_uniform(), name="flag")
        inputs = jnp.concatenate([sentence.vectors, flags(arrays["flags"])], axis=-1)  # [B, T, D + F]
        lstm = HighwayLSTM(config.layers, config.units, config.dropout, name="lstm")
        hidden = lstm(inputs, sentence.mask, deterministic=deterministic)  # [B, T, H]
        if sentence.output is not None:
            hidden = jnp.concatenate([hidden, sentence.output], axis=-1)  # [B, T, H + E]
        initial, precision = nn.initializers.orthogonal(), lax.Precision.HIGHEST
        dense = nn.Dense(len(self.tags), kernel_init=initial, precision=precision, name="output")
        log_probabilities = jax.nn.log_softmax(dense(hidden))  # [B, T, N]
        loss = tagging_loss(log_probabilities, arrays["tags"], sentence.mask)
        best = viterbi_decode(lax.stop_gradient(log_probabilities), sentence.mask, bio_transitions(self.tags))
        return TaskOutput(loss, {"log_probabilities": log_probabilities, "tags": best})


def tagging_loss(log_probabilities: jax.Array, tags: jax.Array, mask: jax.Array) -> jax.Array:
    """Returns the mean cross-entropy of a sentence's tokens, averaged over the sentences that have words, as AllenNLP.

    The arguments are [B, T, N], the gold tags int32 [B, T], and [B, T], true on words.
    """
    chosen = jnp.take_along_axis(log_probabilities, jnp.where(mask, tags, 0)[..., None], axis=-1)[..., 0]  # [B, T]
    lengths = mask.sum(-1)  # [B]
    losses = -jnp.where(mask, chosen, 0.0).sum(-1) / jnp.maximum(lengths, 1)
    return losses.sum() / jnp.maximum((lengths > 0).sum(), 1)


class Argument(NamedTuple):
    """An argument of a predicate."""

    label: str  # the role, such as ARG0, ARGM-TMP or R-ARG1; also V, the predicate itself
    pieces: tuple[tuple[int, int], ...]  # the first and the last word of each piece of the argument


def arguments(tags: Sequence[str]) -> list[Argument]:
    """Returns the arguments of one predicate from BIO tags; an I that opens a span counts as B.

    A span C-x is a further piece of the last argument x before it or, if there is none, a new argument x.
    """
    result: list[Argument] = []
    last: dict[str, int] = {}  # the place in `result` of the last argument of each label
    for label, start, end in spans(tags):
        whole = label.removeprefix("C-")
        if label.startswith("C-") and whole in last:
            argument = result[last[whole]]
            result[last[whole]] = argument._replace(pieces=(*argument.pieces, (start, end)))
        else:
            last[whole] = len(result)
            result.append(Argument(whole, ((start, end),)))
    return result


def evaluate(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> LabelScores:
    """Counts the arguments whose label and pieces are all right, from the gold and predicted BIO tags per predicate."""
    pairs = list(zip(gold, predicted, strict=True))
    if any(len(a) != len(b) for a, b in pairs):
        raise ValueError("a predicate has other numbers of gold and of predicted tags")
    return score_labels(((set(arguments(a)), set(arguments(b))) for a, b in pairs), ignored="V")


def proposition_lines(words: Sequence[str], predicates: Sequence[int], tags: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of one sentence in a file for srl-eval, given the BIO tags of predicates at distinct positions.

    There is one line per word, with the predicate or `-` in the first column and one column of brackets per predicate,
    in the order of their positions; and an empty line.
    """
    columns = [["-"] * len(words)]
    for predicate, predicate_tags in sorted(zip(predicates, tags, strict=True)):
        columns[0][predicate] = words[predicate]
        columns.append(brackets(predicate_tags))
    return [*(" ".join(row) for row in zip(*columns, strict=True)), ""]


@dataclasses.dataclass(frozen=True)
class SRLDataConfig(TaskDataConfig):
    """The sources of the annotated predicates and their format."""

    format: Literal["conll2012", "propbank", "bio"] = setting(
        "conll2012", "The format: columns of CoNLL-2012 or PropBank's gold_conll, or lines of BIO tags."
    )


class SRL(TaggingTask[Example]):
    """Semantic role labelling of given predicates, whose frames are BIO tags."""

    name = "srl"
    metric = "f1"
    spans_and_label = ("arguments", "role")
    data = SRLDataConfig()
    model = SRLModel()
    network = RoleTagger
    sample = {"Text": "The committee wants to publish its report in May."}

    def read(self, source: str, config: Any, use: Use) -> list[Example]:
        layout = config.data.format
        examples: list[Example] = []
        files, part = files_of(source, ("conll",))
        for path in files:
            new = read_bio(path) if layout == "bio" else read_columns(path, layout)
            before = examples[-1].sentence + 1 if examples else 0
            examples += [dataclasses.replace(e, sentence=before + e.sentence) for e in new] if before else new
        return examples[part]

    def labels(self, train: Sequence[Example], config: Any) -> Labels:
        """Returns the tags of the training examples, their words, and those that are predicates in other text.

        The last are the words, in lower case, that are predicates in at least half of their occurrences in the training
        sentences, since most words that can be predicates are common nouns and auxiliaries at other times.
        """
        words: Counter[str] = Counter()
        predicates: Counter[str] = Counter()
        # The examples may be a share of the file's, which does not have all predicates of a sentence.
        for _, examples in itertools.groupby(train, lambda example: (example.sentence, example.tokens)):
            sentence = next(examples)
            words.update(word.lower() for word in sentence.tokens)
            predicates.update(sentence.tokens[i].lower() for i in sentence.predicates)
        known = sorted(word for word, number in predicates.items() if 2 * number >= words[word])
        tags = sorted({"O", *super().labels(train, config)["tags"]})
        return {"tags": tags, "predicates": known, "words": sorted(words)}

    def arrays(self, examples: Sequence[Example], number: int, shape: Shape, labels: Labels) -> Arrays:
        """Returns `flags` int32 [B, T], 1 on the predicate, and `tags` int32 [B, T]."""
        flags = np.zeros((number, shape[0][1]), np.int32)
        flags[np.arange(len(examples)), [example.predicate for example in examples]] = 1
        return {"flags": flags, **super().arrays(examples, number, shape, labels)}

    def score(self, examples: Sequence[Example], predictions: Sequence[Tags]) -> dict[str, float]:
        """Returns `f1`, `precision` and `recall` over all labels but V, and `f1_x` of each label x, in percent."""
        return evaluate([example.tags for example in examples], predictions).metrics()

    def write(self, examples: Sequence[Example], predictions: Sequence[Tags]) -> str:
        """Returns the predicted frames in the columns of brackets that srl-eval reads, without gold annotation.

        The first column has the predicates as words, and sentences without a predicate are left out. srl-eval compares
        it with a file of gold frames of the same form: the result of this function for the gold tags.
        """
        frames: list[tuple[list[str], dict[int, Tags]]] = []  # of each sentence, by the position of the predicate
        before: Example | None = None
        for example, prediction in zip(examples, predictions, strict=True):
            same = before and (before.sentence, before.tokens) == (example.sentence, example.tokens)
            # Files may give one position two frames, for which the format has no room; the second one begins another
            # sentence.
            if not (before and same and before.predicate < example.predicate):
                frames.append((example.tokens, {}))
            frames[-1][1][example.predicate] = prediction
            before = example
        lines = [line for words, tags in frames for line in proposition_lines(words, [*tags], [*tags.values()])]
        return "".join(f"{line}\n" for line in lines)

    def from_words(self, texts: Sequence[list[str]], labels: Labels) -> list[Example]:
        """Returns one example per predicate of a sentence, in order.

        The predicates are the words that `labels` lists as such. A sentence without any gives no example.
        """
        known = set(labels["predicates"])
        return [Example(texts[0], [], 0, i) for i, word in enumerate(texts[0]) if word.lower() in known]

    def overlooked(self, texts: Sequence[list[str]], labels: Labels) -> list[str]:
        """Returns the words that the training text lacks, so that they are not taken as predicates."""
        known = set(labels["words"])
        every = dict.fromkeys(word for words in texts for word in words if any(map(str.isalpha, word)))
        return [word for word in every if word.lower() not in known]

    def as_json(self, example: Example, prediction: Tags) -> dict[str, Any]:
        """Adds `predicate`, its position; the predicate itself is among the `arguments`, with the role V."""
        value = super().as_json(example, prediction)
        return {"tokens": value.pop("tokens"), "predicate": example.predicate, **value}

    def show(self, example: Example, prediction: Tags) -> str:
        """Returns the predicate and its frame in brackets, as in `chased: [ARG0 The cat] [V chased] [ARG1 mice] .`."""
        return f"{example.tokens[example.predicate]}: {super().show(example, prediction)}"


TASK = SRL()
