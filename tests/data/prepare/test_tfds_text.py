import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from elmo_jax.data.blocks import quiet_tfds
from elmo_jax.data.prepare.tfds_text import prepared_builder
from elmo_jax.errors import UserError

# A separate process prepares the dataset, since TFDS reads its folder from the environment only once.

MAKE = """
import tensorflow_datasets as tfds

class TinyText(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=n) for n in ("one", "named", "two", "none")]

    def _info(self):
        text, label = tfds.features.Text(), tfds.features.ClassLabel(names=["a", "b"])
        features = {
            "one": {"label": label, "body": text},
            "named": {"title": text, "text": text},
            "two": {"title": text, "body": text},
            "none": {"label": label},
        }[self.builder_config.name]
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, manager):
        return {"train": self._generate_examples(40), "test": self._generate_examples(3)}

    def _generate_examples(self, number):
        for i in range(number):
            example = {"title": "A title", "body": f"Body {i}, é.", "text": f"Text {i}, it is. Two.", "label": "a"}
            yield i, {key: example[key] for key in self.info.features}

for config in ("one", "named", "two", "none"):
    TinyText(config=config, file_format="array_record").download_and_prepare()
"""
# Prints one line per name: what is read of the source, or the mistake.
READ = """
import sys
from elmo_jax.data.prepare.pieces import chunks
from elmo_jax.data.prepare.options import TextOptions
from elmo_jax.data.prepare.sources import open_sources
from elmo_jax.data.prepare.text import Errors, tokenize
from elmo_jax.errors import UserError
for name in sys.argv[1:]:
    try:
        source, = open_sources([name], TextOptions())
        read = [source.format]
        for chunk in chunks([source], Errors.STRICT):
            found = tokenize(chunk)
            documents = sum(piece.starts_document for piece in chunk.pieces)
            read += [documents, len(found.lengths), *sorted(found.types)]
        print(*read)
    except UserError as error:
        print(error)
assert "tensorflow" not in sys.modules
"""
# Prints one line per list of names: nothing, or the mistake.
OPEN = """
import sys
from elmo_jax.data.prepare.options import TextOptions
from elmo_jax.data.prepare.sources import check_read_once, open_sources
from elmo_jax.errors import UserError

for names in sys.argv[1:]:
    try:
        check_read_once(open_sources(names.split(), TextOptions()))
        print()
    except UserError as error:
        print(error)
"""
READS = {
    "tfds:tiny_text/one": "raw 40 40 , . 0 1 10 11 12",
    "TFDS:tiny_text/one:test": "raw 3 3 , . 0 1 2 Body é",
    "tfds:tiny_text/one:1.0.0:test": "raw 3 3 , . 0 1 2 Body é",
    "tfds:tiny_text/one:train[:10%]": "raw 4 4 ",
    "tfds:tiny_text/named:test": "raw 3 6 , . 0 1 2 Text Two is it",
    "tfds:tiny_text/two": "expected one text feature, or one called text; the dataset has body (Text), title",
    "tfds:tiny_text/none": "expected one text feature, or one called text; the dataset has label",
    "tfds:tiny_text/one:validation": "no split 'validation'; the dataset has train, test",
    "tfds:no_such_text": "TFDS has no dataset of this name",
    "tfds:": "expected tfds:NAME or tfds:NAME:SPLIT",
}
SHARES = "{two}: shares examples with {one}; name splits that do not overlap"
TWICE = "{one}: names some examples twice; name splits that do not overlap"
SPLITS = {
    ("train+train[:10%]",): TWICE,
    ("train", "train[:10%]"): SHARES,
    ("train[:10%]", "train[10%:]"): "",
    ("train[:20]", "test+train[19:]"): SHARES,
    ("train", "test"): "",
    ("train", "all"): SHARES,
}


@pytest.fixture(scope="module")
def tfds_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tfds")
    (folder / "make.py").write_text(MAKE)
    run(folder, str(folder / "make.py"))
    return folder


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TFDS_DATA_DIR": str(folder)}
    return subprocess.run([sys.executable, *arguments], env=environment, check=True, capture_output=True, text=True)


def test_tfds(tfds_folder: Path) -> None:
    done = run(tfds_folder, "-c", READ, *READS)
    assert done.stderr == ""
    for line, (name, expected) in zip(done.stdout.splitlines(), READS.items(), strict=True):
        assert expected in line, name


def test_what_would_fail_after_the_download_is_refused_before_it(tmp_path: Path) -> None:
    without_network = """
import socket, time
def fail(*_): raise socket.gaierror(-2, "Name or service not known")
socket.getaddrinfo, time.sleep = fail, lambda _: None
"""
    names = [
        "tfds:imdb_reviews:all",
        "tfds:mnist",
    ]
    done = run(tmp_path, "-c", without_network + OPEN, *names)
    offline, image = [line.partition(": ")[2] for line in done.stdout.splitlines() if line.startswith("tfds:")]
    assert offline.startswith("TFDS cannot prepare the dataset: ConnectionError: ") and "ai.stanford.edu" in offline
    assert offline.endswith("; without a network, set TFDS_DATA_DIR to a folder in which it is prepared")
    assert image == "expected one text feature, or one called text; the dataset has image (Image), label (ClassLabel)"
    assert "Retrying" not in done.stderr


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("trian", "no split 'trian'; the dataset has train, test"),
        ("train[:10%]+tset", "no split 'train[:10%]+tset'; the dataset has train, test"),
        (
            "train[:10%]+test",
            "builder needs tensorflow to prepare it (not to read it later); run: pip install tensorflow",
        ),
    ],
)
def test_a_split_that_tfds_knows_not_to_exist_is_refused_before_the_download(
    monkeypatch: pytest.MonkeyPatch, split: str, expected: str
) -> None:
    with quiet_tfds():
        import tensorflow_datasets as tfds

    def prepare() -> None:
        raise ImportError("no module", name="tensorflow.io")

    splits = {name: tfds.core.SplitInfo(name=name, shard_lengths=[20], num_bytes=0) for name in ("train", "test")}
    info = SimpleNamespace(features=None, splits=splits)
    builder = SimpleNamespace(info=info, is_prepared=lambda: False, download_and_prepare=prepare)
    monkeypatch.setattr(tfds, "builder", lambda *_, **__: builder)
    with pytest.raises(UserError, match=re.escape(expected)):
        prepared_builder("tfds:text", "text", split, lambda *_: None)


def test_examples_are_not_read_twice(tfds_folder: Path) -> None:
    names = [[f"tfds:tiny_text/one:{split}" for split in splits] for splits in SPLITS]
    lines = run(tfds_folder, "-c", OPEN, *map(" ".join, names)).stdout.splitlines()
    expected = [
        message.format(one=one, two=" ".join(two)) for (one, *two), message in zip(names, SPLITS.values(), strict=True)
    ]
    assert lines == expected


def test_tfds_prepared_for_tensorflow_says_what_to_do(tfds_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tiny_text" / "one" / "1.0.0"
    folder.mkdir(parents=True)
    for file in (tfds_folder / "tiny_text" / "one" / "1.0.0").iterdir():
        data = file.read_bytes().replace(b'"array_record"', b'"tfrecord"')
        (folder / file.name.replace("array_record", "tfrecord")).write_bytes(data)
    done = run(tmp_path, "-c", READ, "tfds:tiny_text/one")
    assert "prepared as tfrecord" in done.stdout and "TFDS_DATA_DIR" in done.stdout


def test_warnings_are_kept_from_the_terminal_and_only_meanwhile() -> None:
    logger = logging.getLogger("absl")
    before = logger.level
    with quiet_tfds():
        assert not logger.isEnabledFor(logging.WARNING) and logger.isEnabledFor(logging.ERROR)
    assert logger.level == before
