"""Writes the English texts of the package `licensedcode-data`, 2,300 software licences of 2.2 M words, as documents.

    pip install --no-deps "licensedcode-data>=32.1,<33"
    python experiments/licenses.py data/licenses

Many licences are versions of one another. A document, which `elmo-jax` holds out or trains on as a whole, is therefore
a cluster of near-duplicates, so that no licence is held out while a version of it is trained on. Two texts are
near-duplicates if half of the runs of five words of the shorter one occur in the other (containment, Broder 1997). All
pairs are compared exactly, which is feasible for a few thousand texts.
"""

import importlib.metadata
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

RUN = 5  # words; shorter runs are phrases that unrelated texts share
SHARE = 0.5  # the least share of common runs of two near-duplicates

_HEADER = re.compile(r"---\n(?P<header>.*?)^---(?:\n|\Z)", re.DOTALL | re.MULTILINE)  # YAML
_LANGUAGE = re.compile(r"^language: *(?P<language>\S+)", re.MULTILINE)  # absent from the headers of English texts
_WORD = re.compile(r"\w+")


def near_duplicates(texts: Sequence[str]) -> list[int]:
    """Returns for each text the index of the first one of its cluster, which pairs of near-duplicates connect.

    Case and punctuation are ignored.
    """
    runs: list[set[str]] = []
    for text in texts:
        words = _WORD.findall(text.lower())
        runs.append({" ".join(words[start : start + RUN]) for start in range(len(words) - RUN + 1)})
    owners: dict[str, list[int]] = defaultdict(list)  # of each run, the texts so far that contain it
    clusters: list[int] = []
    for number, own in enumerate(runs):
        common: Counter[int] = Counter()
        for run in own:
            common.update(owners[run])
            owners[run].append(number)
        near = {clusters[text] for text, count in common.items() if count >= SHARE * min(len(own), len(runs[text]))}
        first = min(near, default=number)
        clusters = [*(first if cluster in near else cluster for cluster in clusters), first]
    return clusters


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
        clusters.setdefault(cluster, []).append(text)
    # An empty line keeps the last paragraph of a text apart from the first of the next.
    return ["".join(f"{text}\n\n" for text in cluster) for cluster in clusters.values()]


def main(out: Path) -> None:
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
