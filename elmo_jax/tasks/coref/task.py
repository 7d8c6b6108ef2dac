"""Implements coreference resolution as a task of the trainer; an example is a document with one sentence per row."""

import dataclasses
import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import numpy as np

from elmo_jax.errors import UserError
from elmo_jax.settings import setting
from elmo_jax.tasks.core.config import TaskDataConfig, TaskTrainConfig
from elmo_jax.tasks.core.tagging import highlight_spans
from elmo_jax.tasks.core.task import Arrays, Highlighted, Labels, Shape, Task, Text, Use
from elmo_jax.tasks.coref.metric import metric
from elmo_jax.tasks.coref.model import CorefModel, SpanRanker
from elmo_jax.tasks.coref.reader import GENRES, NO_SPEAKER, Document, Mention, Singletons, read, read_json_lines
from elmo_jax.tasks.formats.sources import files_of
from elmo_jax.text_files import without_suffix

Documents = Sequence[Document]
Prediction = list[list[Mention]]
_JSON = (".jsonlines", ".jsonl")


@dataclasses.dataclass(frozen=True)
class CorefDataConfig(TaskDataConfig):
    """The annotated documents: files or folders of files; `FOLDER[:80]` reads the first 80 documents.

    `FOLDER[LIST]` reads the documents that are named in a list, such as those of CoNLL-2012's splits of OntoNotes.
    """

    singletons: Singletons = setting("keep", "Whether gold entities of one mention, never predicted, are kept.")


class Coref(Task[Document, Prediction]):
    """Coreference resolution of documents, each of which is an example."""

    name = "coref"
    metric = "average_f1"
    data = CorefDataConfig()
    model = CorefModel()
    train = TaskTrainConfig(batch_size=1, max_sentences=50)
    ids_are_keys = True
    document_level = True
    sample = {"Text": "Ada lost the key to her house. A neighbour found it and gave it back to her."}

    def read(self, source: str, config: Any, use: Use) -> list[Document]:
        files, part = files_of(source, ("conll", *_JSON))
        documents: list[Document] = []
        for file in files:
            if without_suffix(file).suffix in _JSON:
                documents += read_json_lines(file, config.data.singletons, annotated=use != "prediction")
            else:
                documents += read(file, config.data.singletons)
        return documents[part]

    def texts(self, example: Document) -> tuple[Text, ...]:
        return (example.sentences,)

    def size(self, example: Document) -> Shape:
        """Returns the number of sentences and of words of the longest one, and then the number N of all words."""
        return (*super().size(example), (1, sum(map(len, example.sentences))))

    def window(self, example: Document, first: int, sentences: int) -> Document:
        before = sum(map(len, example.sentences[:first]))
        kept = example.sentences[first : first + sentences]
        end = before + sum(map(len, kept))
        inside = [
            [(start - before, last - before) for start, last in cluster if before <= start and last < end]
            for cluster in example.clusters
        ]
        speakers = example.speakers[first : first + sentences]
        return dataclasses.replace(example, sentences=kept, speakers=speakers, clusters=list(filter(None, inside)))

    def labels(self, train: Documents, config: Any) -> Labels:
        """Returns the number of words of the widest span, and the most frequent genre, for documents without one."""
        if not any(document.clusters for document in train):
            remedy = "give annotated documents, a larger train_fraction, or singletons=keep"
            raise UserError(f"config.data.train: no document has a cluster of mentions; {remedy}")
        genres = Counter(document.genre for document in train if document.genre)
        genre = max(genres, key=lambda g: (genres[g], g), default=GENRES[0])
        return {"max_span_width": config.model.max_span_width, "genre": genre}

    def arrays(self, examples: Documents, number: int, shape: Shape, labels: Labels) -> Arrays:
        """Returns `clusters` int32 [1, N, W], `speakers` int32 [1, N] and `genre` int32 [1] of one document."""
        (document,) = examples
        (_, (_, size)) = shape
        gold = np.zeros((1, size, labels["max_span_width"]), np.int32)
        for entity, cluster in enumerate(document.clusters, 1):
            for start, end in cluster:
                if end - start < labels["max_span_width"]:
                    gold[0, start, end - start] = entity
        speakers = np.zeros((1, size), np.int32)
        numbers: dict[str, int] = defaultdict(lambda: len(numbers))
        names = [numbers[name] for row in document.speakers for name in row]
        speakers[0, : len(names)] = names
        genre = GENRES.index(document.genre or labels["genre"])
        return {"clusters": gold, "speakers": speakers, "genre": np.array([genre], np.int32)}

    def module(self, config: Any, labels: Labels) -> nn.Module:
        return SpanRanker(config.model)

    def decode(self, predictions: Arrays, examples: Documents, labels: Labels, config: Any) -> list[Prediction]:
        return [clusters(**{name: array[0] for name, array in predictions.items()})]

    def score(self, examples: Documents, predictions: Sequence[Prediction]) -> dict[str, float]:
        return metric([example.clusters for example in examples], predictions)

    def write(self, examples: Documents, predictions: Sequence[Prediction]) -> str:
        """Returns documents in the columns of CoNLL-2012 for the official scorer, the last with the predicted clusters.

        The format cannot express two mentions of one entity that cross; the model predicts none.
        """
        lines = []
        for number, (document, prediction) in enumerate(zip(examples, predictions, strict=True), 1):
            cells = iter(_cells(sum(map(len, document.sentences)), prediction))
            name = document.name or f"text{number}"
            lines.append(f"#begin document ({name}); part {document.part}")
            for words, speakers in zip(document.sentences, document.speakers, strict=True):
                for position, (word, speaker) in enumerate(zip(words, speakers, strict=True)):
                    row = [name, int(document.part), position, word, *["-"] * 5, speaker, "-", next(cells)]
                    lines.append("\t".join(map(str, row)))
                lines.append("")
            lines.append("#end document")
        return "".join(f"{line}\n" for line in lines)

    def from_words(self, texts: Sequence[Text], labels: Labels) -> list[Document]:
        sentences = [sentence for sentence in texts[0] if sentence]
        speakers = [[NO_SPEAKER] * len(sentence) for sentence in sentences]
        return [Document("", "000", None, sentences, speakers, [])]

    def as_json(self, example: Document, prediction: Prediction) -> dict[str, Any]:
        """Returns `sentences` and `clusters`; a mention has the words `start` to before `end` of the whole text."""
        words = [word for sentence in example.sentences for word in sentence]
        entities = [
            [{"text": " ".join(words[start : end + 1]), "start": start, "end": end + 1} for start, end in cluster]
            for cluster in prediction
        ]
        return {"sentences": example.sentences, "clusters": entities}

    def highlight(self, prediction: dict[str, Any]) -> Highlighted:
        """Returns the text with the number of each mention's entity, and then the mentions of each entity."""
        words = list(itertools.chain(*prediction["sentences"]))
        entities = list(enumerate(prediction["clusters"], 1))
        mentions = [(m["start"], m["end"], str(number)) for number, entity in entities for m in entity]
        lists = [(f"\n{number}: {' · '.join(m['text'] for m in entity)}", None) for number, entity in entities]
        return [*highlight_spans(words, mentions), *lists]

    def show(self, example: Document, prediction: Prediction) -> str:
        """Returns one sentence per line with mentions in brackets, as in `[1 Ada] praised [2 [1 her] mother] .`."""
        words = [word for sentence in example.sentences for word in sentence]
        mentions = [(mention, number) for number, cluster in enumerate(prediction, 1) for mention in cluster]
        for (start, end), number in sorted(mentions, key=lambda mention: (mention[0][1] - mention[0][0], mention)):
            words[start] = f"[{number} {words[start]}"  # shortest first, so that longer ones open before them
            words[end] += "]"
        rest = iter(words)
        return "\n".join(" ".join(next(rest) for _ in sentence) for sentence in example.sentences)


def clusters(
    starts: Sequence[int], ends: Sequence[int], antecedents: Sequence[int], kept: Sequence[bool]
) -> Prediction:
    """Returns the connected components of the links between spans, sorted; spans without a link are dropped.

    The spans, both ends inclusive, are in order. The place of a span's antecedent is before its own, or -1 for none;
    `kept` is false for spans that only fill up the arrays.
    """
    cluster_of: list[list[Mention]] = []
    for start, end, antecedent, real in zip(starts, ends, antecedents, kept, strict=True):
        cluster_of.append(cluster_of[int(antecedent)] if real and antecedent >= 0 else [])
        cluster_of[-1].append((int(start), int(end)))
    together = {id(cluster): sorted(cluster) for cluster in cluster_of if len(cluster) > 1}
    return sorted(together.values())


def _cells(words: int, prediction: Prediction) -> list[str]:
    """Returns the column of coreference, in which inner mentions open after outer ones and close before them."""
    opening: list[list[str]] = [[] for _ in range(words)]
    closing: list[list[str]] = [[] for _ in range(words)]
    mentions = [(start, end, number) for number, cluster in enumerate(prediction) for start, end in cluster]
    for start, end, number in sorted(mentions, key=lambda m: (m[0], -m[1])):
        if start == end:
            opening[start].append(f"({number})")
        else:
            opening[start].append(f"({number}")
            closing[end].insert(0, f"{number})")
    return ["|".join([*closed, *opened]) or "-" for opened, closed in zip(opening, closing, strict=True)]


TASK = Coref()
