"""Reads SQuAD 1.1, questions about paragraphs whose answers are spans of them, and splits text into words."""

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from elmo_jax.errors import UserError
from elmo_jax.tasks.core.task import repeated_id, report
from elmo_jax.tasks.formats.lines import read_json
from elmo_jax.text_files import read_lines

_CHUNK = re.compile(r"\S+")
# These are words: the punctuation that the Penn Treebank splits off, and, since answers begin and end there, dashes,
# slashes, single quotes and currency signs (original: document-qa). A comma or a colon before a digit and consecutive
# underscores stay in their word.
_SEPARATOR = re.compile(
    r"""\.\.\. | `` | ''
    | [,:](?![0-9])
    | [;@\#%&?!()\[\]{}<>…]
    | [-–—−/~"'’‘”“°]
    | [$¢£¤¥\u20a0-\u20cf﹩＄￠￡￥￦]
    | (?<=[^_])_(?=[^_])""",
    re.VERBOSE,
)
_NEGATION = re.compile(r"(?<=\w)(?=n['’]t(?!\w))", re.IGNORECASE)  # "didn't" is "did" and "n't" in the Penn Treebank
_FULL_STOP = re.compile(r"""(?<=[^.])\.(?=[])}>"'’”]*\Z)""")  # only at the end of a sentence
_DOUBLE_QUOTES = frozenset(["``", "''", "“", "”"])


@dataclasses.dataclass(frozen=True)
class Tokens:
    """The words of a text."""

    words: list[str]  # in which double quotes of every kind are `"`
    starts: list[int]  # the position of each word's first character in the text, counted in code points
    ends: list[int]  # the position after each word's last character

    def overlapping(self, start: int, end: int) -> tuple[int, int] | None:
        """Returns the first and the last word with a character from `start` to before `end`; None without any."""
        tokens = [i for i, (a, b) in enumerate(zip(self.starts, self.ends, strict=True)) if a < end and b > start]
        return (tokens[0], tokens[-1]) if tokens else None


def tokenize(text: str) -> Tokens:
    """Splits English text into words; a full stop is split off only at the end of a sentence ("Mr." stays whole)."""
    starts: list[int] = []
    ends: list[int] = []
    for chunk_start, chunk, ends_sentence in _chunks(text):
        cuts = {0, len(chunk)}
        for match in _SEPARATOR.finditer(chunk):
            cuts |= {match.start(), match.end()}
        cuts |= {match.start() for match in _NEGATION.finditer(chunk)}
        full_stop = _FULL_STOP.search(chunk) if ends_sentence else None
        if full_stop:
            cuts |= {full_stop.start(), full_stop.end()}
        for start, end in itertools.pairwise(sorted(cuts)):
            starts.append(chunk_start + start)
            ends.append(chunk_start + end)
    words = [text[start:end] for start, end in zip(starts, ends, strict=True)]
    return Tokens(['"' if word in _DOUBLE_QUOTES else word for word in words], starts, ends)


def _chunks(text: str) -> Iterator[tuple[int, str, bool]]:
    """Yields the position of each piece between spaces, the piece, and whether it ends a sentence."""
    from sentencex import segment

    start = 0
    for sentence in segment("en", text):  # concatenated, the sentences are the text
        chunks = list(_CHUNK.finditer(sentence))
        for i, chunk in enumerate(chunks):
            yield start + chunk.start(), chunk.group(), i == len(chunks) - 1
        start += len(sentence)


# what happens to a question without an answer, see `questions`; "unknown" is for files of which no answers are read
Missing = Literal["error", "skip"]
AnyMissing = Missing | Literal["unknown"]

_MOVED = "first answers not at their answer_start; nearest occurrence used"
_MISSING = "questions left out, since they have no answer, or the first one is not in the paragraph"
_WIDER = "first answers that begin or end inside a word; trained on as whole words"


@dataclasses.dataclass(frozen=True)
class Paragraph:
    """A paragraph that questions are about."""

    title: str  # the title of the article
    text: str  # the text as in the file
    tokens: Tokens  # the words and their positions in the text

    def answer(self, first: int, last: int) -> str:
        """Returns the text from the start of the word `first` to the end of the word `last`."""
        return self.text[self.tokens.starts[first] : self.tokens.ends[last]]


@dataclasses.dataclass(frozen=True)
class Example:
    """A question about a paragraph."""

    id: str  # the name of the question in the file, by which the official script finds a prediction
    paragraph: Paragraph  # the paragraph, which several questions share
    tokens: list[str]  # the words of the question
    answers: list[str]  # the texts of the gold answers
    span: tuple[int, int]  # the first and the last word of the first gold answer in the paragraph


def read(path: Path, missing: AnyMissing = "error", part: slice | str = slice(None)) -> list[Example]:
    """Reads a file of questions in the JSON of SQuAD; see `questions`.

    The part of the articles is a slice, or those of the titles in `Title;Title`, or the others in `not Title;Title`.
    """
    content = read_json(path, "\n".join(line.text for line in read_lines(path)), 1)
    articles = _field(path, content, "data", list, "")
    numbers: Sequence[int] = range(len(articles))
    if isinstance(part, str):
        chosen = set(map(str.strip, part.removeprefix("not ").split(";"))) - {""}
        titles = [_field(path, article, "title", str, f"data[{number}]") for number, article in enumerate(articles)]
        if not chosen <= set(titles):
            raise UserError(f"{path}: has no article with the title {min(chosen - set(titles))!r}")
        numbers = [number for number in numbers if (titles[number] in chosen) != part.startswith("not ")]
    else:
        numbers = numbers[part]
    return questions(path, [articles[number] for number in numbers], missing, numbers)


def questions(path: Path, articles: Sequence[Any], missing: AnyMissing, numbers: Sequence[int]) -> list[Example]:
    """Returns the questions of articles in the form of SQuAD 1.1; those of SQuAD 2.0 without an answer are missing.

    The span of an answer consists of the words that have a character of the answer. If the paragraph has another text
    at `answer_start`, which is counted in code points, the nearest occurrence of the answer is taken, and of two
    equally near ones the first. `path` and the `numbers` of the articles are for messages.

    With `missing` "error", a question without an answer, or whose first answer is nowhere in its paragraph, is refused;
    with "skip" it is left out; and with "unknown" no answers are read.
    """
    counts = dict.fromkeys((_MOVED, _MISSING, _WIDER), 0)
    examples = []
    for a, article in zip(numbers, articles, strict=True):
        where = f"data[{a}]"
        title = _field(path, article, "title", str, where)
        for p, paragraph in enumerate(_field(path, article, "paragraphs", list, where)):
            here = f"{where}.paragraphs[{p}]"
            text = _field(path, paragraph, "context", str, here)
            about = Paragraph(title, text, tokenize(text))
            for q, question in enumerate(_field(path, paragraph, "qas", list, here)):
                example = _example(path, question, about, f"{here}.qas[{q}]", missing, counts)
                examples += [example] if example else []
    if (twice := repeated_id(examples)) is not None:
        raise UserError(f"{path}: two questions have the id {twice!r}; ids must be unique, since answers refer to them")
    report(path, counts)
    return examples


def _example(
    path: Path, question: Any, about: Paragraph, where: str, missing: AnyMissing, counts: dict[str, int]
) -> Example | None:
    name = _field(path, question, "id", str, where)
    tokens = tokenize(_field(path, question, "question", str, where)).words
    if not tokens:
        raise UserError(f"{path}, {where}: the question {name!r} has no words")
    if not about.tokens.words:
        raise UserError(f"{path}, {where}: the paragraph of the question {name!r} has no words")
    if missing == "unknown":
        return Example(name, about, tokens, [], (0, 0))
    answers = _field(path, question, "answers", list, where)
    texts = [_field(path, answer, "text", str, f"{where}.answers[{i}]") for i, answer in enumerate(answers)]
    first = texts[0].strip() if texts else ""
    stated = _field(path, answers[0], "answer_start", int, f"{where}.answers[0]") if texts else 0
    start = nearest(about.text, texts[0], stated) if first else None
    span = None if start is None else about.tokens.overlapping(start, start + len(texts[0]))
    if span is None:
        if missing == "error":
            problem = f"the question {name!r} has no answers, or the first one is empty"
            if first:
                problem = f"the answer {texts[0]!r} to question {name!r} is not in its paragraph"
            raise UserError(f"{path}, {where}: {problem}; config.data.missing=skip leaves such questions out")
        counts[_MISSING] += 1
        return None
    counts[_WIDER] += about.answer(*span) != first
    counts[_MOVED] += start != stated
    return Example(name, about, tokens, texts, span)


def nearest(text: str, part: str, position: int) -> int | None:
    """Returns where the occurrence of a part in a text begins that is nearest to a position; None without any."""
    starts = (match.start() for match in re.finditer(f"(?={re.escape(part)})", text))  # they may overlap
    return min(starts, key=lambda start: abs(start - position), default=None)


def _field(path: Path, value: Any, key: str, kind: type, where: str) -> Any:
    field = value.get(key) if isinstance(value, dict) else None
    if type(field) is not kind:
        names = {str: "a string", int: "a whole number", list: "a list"}
        json_path = f"{where}.{key}" if where else key
        raise UserError(f"{path}, {json_path}: expected {names[kind]}, found {str(field)[:40]!r}")
    return field
