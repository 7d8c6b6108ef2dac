"""Writes the English texts of the package `licensedcode-data`, 2,300 software licences of 2.2 M words, as documents.

    pip install --no-deps "licensedcode-data>=32.1,<33"
    python experiments/licenses.py data/licenses

Many licences are versions of one another. A document, which `elmo-jax` holds out or trains on as a whole, is therefore
a cluster of near-duplicates, so that no licence is held out while a version of it is trained on. Two texts are
near-duplicates if half of the runs of five words of the shorter one occur in the other (containment, Broder 1997). All
pairs are compared exactly, which is feasible for a few thousand texts.

Shapes: n texts.
"""

import importlib.metadata
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

RUN = 5  # words; shorter runs are phrases that unrelated texts share
SHARE = 0.5  # the least share of common runs of two near-duplicates

_HEADER = re.compile(r"---\n(?P<header>.*?)^---(?:\n|\Z)", re.DOTALL | re.MULTILINE)  # YAML
_LANGUAGE = re.compile(r"^language: *(?P<language>\S+)", re.MULTILINE)  # absent from the headers of English texts
_WORD = re.compile(r"\w+")
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # any large odd number would do; it spreads the words of a run over 64 bits


def near_duplicates(texts: Sequence[str]) -> np.ndarray:
    """Finds the clusters of texts that are connected by pairs of near-duplicates.

    Args:
      texts: `n` texts; case and punctuation are ignored.

    Returns:
      For each text, the index of the first text of its cluster, int64 `[n]`.
    """
    if not texts:
        return np.zeros(0, np.int64)
    numbers: dict[str, int] = {}
    runs = [_runs(text, numbers) for text in texts]
    sizes = np.array([len(hashes) for hashes in runs])
    # The texts that contain a run are adjacent: those of run r are owners[starts[r] : starts[r + 1]].
    _, ids = np.unique(np.concatenate([np.zeros(0, np.uint64), *runs]), return_inverse=True)
    owners = np.repeat(np.arange(len(texts)), sizes)[np.argsort(ids, kind="stable")]
    starts = np.append(0, np.cumsum(np.bincount(ids)))
    cluster = np.arange(len(texts))
    for text, hashes in enumerate(np.split(ids, np.cumsum(sizes)[:-1])):
        shared = [owners[starts[run] : starts[run + 1]] for run in hashes if starts[run + 1] - starts[run] > 1]
        common = np.bincount(np.concatenate(shared), minlength=len(texts))[:text] if shared else np.zeros(text, int)
        near = np.flatnonzero((common > 0) & (common >= SHARE * np.minimum(sizes[text], sizes[:text])))
        for other in np.unique(cluster[near]):
            low, high = sorted((cluster[text], other))
            cluster[cluster == high] = low
    return cluster


def _runs(text: str, numbers: dict[str, int]) -> np.ndarray:
    """Returns the distinct runs of `RUN` words, each as a hash of 64 bits; new words are added to `numbers`."""
    words = np.array([numbers.setdefault(word, len(numbers)) for word in _WORD.findall(text.lower())], np.uint64)
    number = max(len(words) - RUN + 1, 0)
    hashes = np.zeros(number, np.uint64)
    for offset in range(RUN):
        hashes = (hashes ^ words[offset : offset + number]) * _FACTOR
        hashes ^= hashes >> np.uint64(29)
    return np.unique(hashes)


def license_text(content: str) -> str:
    """Returns the text of a licence's file without its header; empty unless it is English."""
    header = _HEADER.match(content)
    if header is None:
        raise ValueError("expected a header between lines of ---")
    language = _LANGUAGE.search(header["header"])
    return content[header.end() :] if language is None or language["language"] == "en" else ""


def documents(texts: Sequence[str]) -> list[str]:
    """Returns the clusters of near-duplicates as documents; texts of fewer than `RUN` words are left out."""
    texts = [text for text in texts if len(text.split()) >= RUN]
    clusters: dict[int, list[str]] = {}
    for cluster, text in zip(near_duplicates(texts), texts, strict=True):
        clusters.setdefault(int(cluster), []).append(text)
    # An empty line keeps the last paragraph of a text apart from the first of the next.
    return ["".join(f"{text}\n\n" for text in cluster) for cluster in clusters.values()]


def main(out: Path) -> None:
    """Writes the documents, unless the folder exists."""
    if out.exists():
        return
    package = importlib.metadata.distribution("licensedcode-data")
    paths = sorted(Path(str(package.locate_file("licensedcode/data/licenses"))).glob("*.LICENSE"))
    written = documents([license_text(path.read_text(encoding="utf-8")) for path in paths])
    partial = out.with_name(f".{out.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    for number, document in enumerate(written):
        (partial / f"{number:04}.txt").write_text(document, encoding="utf-8")
    partial.rename(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
