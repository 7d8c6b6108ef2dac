"""Makes corpora of small texts, and reads them back."""

from pathlib import Path
from typing import Any

import pytest

from elmo_jax.data.corpus import Corpus
from elmo_jax.data.prepare.options import PrepareOptions, TextOptions
from elmo_jax.data.prepare.pipeline import prepare
from elmo_jax.errors import UserError


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def read(corpus: Corpus, split: str) -> list[str]:
    """Returns the sentences of a split."""
    words, blocks = corpus.words(), corpus.blocks(split)
    text = " ".join("\n" if i == 0 else words[i] for k in range(len(blocks)) for i in blocks[k])
    return [line.strip() for line in text.split("\n")[1:]]


def make(out: Path, *sources: str | Path, **settings: Any) -> Corpus:
    options = TextOptions(
        **{name: settings.pop(name) for name in ("format", "field", "errors", "language") if name in settings}
    )
    return prepare(
        [str(s) for s in sources], out, PrepareOptions(options, **{"progress": False, "workers": 1, **settings})
    )


def refusal(out: Path, *sources: str | Path, **settings: Any) -> str:
    with pytest.raises(UserError) as error:
        make(out, *sources, **settings)
    assert "\n" not in str(error.value)
    return str(error.value)


def document(i: int) -> list[str]:
    return [f"all words of document d{i} , line {k}" for k in range(i % 3 + 1)]
