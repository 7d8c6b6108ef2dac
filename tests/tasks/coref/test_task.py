"""Tests the task of coreference beyond its reader, model and metric, and the windows of long documents."""

import dataclasses

import jax
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from elmo_jax.distributed.mesh import make_mesh
from elmo_jax.errors import UserError
from elmo_jax.settings import from_dict
from elmo_jax.tasks.core.config import TaskConfig, TaskTrainConfig
from elmo_jax.tasks.core.data import CPU, TaskData, choose_shapes, size_of
from elmo_jax.tasks.core.inputs import TextEncoder
from elmo_jax.tasks.core.setup import TaskSetup
from elmo_jax.tasks.core.vocabulary import Vocabulary, WordTable
from elmo_jax.tasks.coref.reader import Document, read
from elmo_jax.tasks.coref.task import TASK
from elmo_jax.tasks.registry import task_config

SENTENCES = [["Ada", "saw", "her", "own", "mother", "."], ["She", "waved", "."], ["Ada", "waved", "back", "."]]
SPEAKERS = [["Bo"] * 6, ["Cy"] * 3, ["Bo"] * 4]
CLUSTERS = [[(0, 0), (2, 2), (9, 9)], [(2, 4), (6, 6)], [(7, 7)]]
DOCUMENT = Document("nw/a", "001", "nw", SENTENCES, SPEAKERS, CLUSTERS)
LABELS = TASK.labels([DOCUMENT], TASK.config_class())


def test_what_is_written_is_read_again(tmp_path):
    other = dataclasses.replace(
        DOCUMENT, name="bn/b", genre="bn", part="0", clusters=[[(0, 1), (1, 1), (3, 5), (5, 5)]]
    )
    path = tmp_path / "predicted"
    path.write_text(TASK.write([DOCUMENT, other], [DOCUMENT.clusters, other.clusters]))
    assert read(path) == [DOCUMENT, other]
    assert [document.id for document in read(path)] == ["(nw/a); part 001", "(bn/b); part 0"]
    assert "\n#begin document (bn/b); part 0\nbn/b\t0\t0\t" in path.read_text()


def test_documents_without_a_name_are_numbered():
    document = dataclasses.replace(DOCUMENT, name="", part="0")
    actual = TASK.write([document, document], [[], []])
    assert "#begin document (text1); part 0\n" in actual and "#begin document (text2); part 0\n" in actual


def test_a_training_without_clusters_is_refused():
    with pytest.raises(UserError, match="config.data.train: no document has a cluster of mentions"):
        TASK.labels([dataclasses.replace(DOCUMENT, clusters=[])], TASK.config_class())


def test_mentions_that_share_a_word_are_read_again(tmp_path):
    """Those of one entity are nested or share their first or last word; those of two entities may cross."""
    path = tmp_path / "predicted"
    for clusters in ([[(0, 2), (0, 4), (2, 4)]], [[(0, 2)], [(1, 3)]]):
        document = dataclasses.replace(DOCUMENT, clusters=clusters)
        path.write_text(TASK.write([document], [clusters]))
        assert read(path) == [document]


def test_a_folder_is_read_in_the_order_of_its_names_and_divided(tmp_path):
    documents = [dataclasses.replace(DOCUMENT, name=f"nw/{name}") for name in "cab"]
    for document in documents:
        text = TASK.write([document], [document.clusters])
        (tmp_path / f"{document.name[3:]}.v4_gold_conll").write_text(text)
    (tmp_path / "notes.txt").write_text("no document")
    config = TASK.config_class()
    assert [document.name[3:] for document in TASK.read(str(tmp_path), config, "training")] == ["a", "b", "c"]
    assert [document.name[3:] for document in TASK.read(f"{tmp_path}[1:]", config, "training")] == ["b", "c"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="has no files whose names end with conll"):
        TASK.read(str(tmp_path / "empty"), config, "training")


def test_singletons_are_a_setting(tmp_path):
    path = tmp_path / "x.conll"
    path.write_text(TASK.write([DOCUMENT], [CLUSTERS]))
    drop = from_dict({"data": {"singletons": "drop"}}, TASK.config_class)
    predicted = [CLUSTERS[:2]]
    keep = TASK.score(TASK.read(str(path), TASK.config_class(), "evaluation"), predicted)
    assert keep["average_f1"] < 100 == TASK.score(TASK.read(str(path), drop, "evaluation"), predicted)["average_f1"]


def test_a_window_has_the_mentions_inside_it():
    actual = TASK.window(DOCUMENT, 1, 2)
    assert actual.sentences == SENTENCES[1:] and actual.speakers == SPEAKERS[1:]
    assert actual.clusters == [[(3, 3)], [(0, 0)], [(1, 1)]]
    assert TASK.window(DOCUMENT, 0, 3) == DOCUMENT


def test_windows_of_training_documents_are_drawn_again_in_every_epoch():
    long = dataclasses.replace(DOCUMENT, sentences=SENTENCES * 4, speakers=SPEAKERS * 4)
    config = TaskConfig(train=TaskTrainConfig(batch_size=1, max_sentences=3))
    vocabulary = Vocabulary(sorted(sum(SENTENCES, [])), [], config.word_vectors)
    table = WordTable(np.zeros((2 + len(vocabulary.words), 2), np.float32), np.zeros(1, bool), 1.0, None)
    setup = TaskSetup(TASK, config, LABELS, vocabulary, table, None, make_mesh(jax.devices()[:1]))
    shapes = choose_shapes([size_of(TASK, long, 3)], 1, CPU)
    data = TaskData(setup, TextEncoder(setup), [long], shapes, trains=True)
    (batch,) = data.epoch(np.random.default_rng(0))
    assert batch.shape == ((3, 8), (1, 16))

    def words(draw):
        return data.arrays(batch, draw).texts[0]["words"].tolist()

    drawn = [words((0, epoch)) for epoch in range(8)]
    assert drawn == [words((0, epoch)) for epoch in range(8)] != [words((1, epoch)) for epoch in range(8)]
    assert len({str(window) for window in drawn}) == 3  # that the document repeats after three sentences
    whole = TaskData(setup, TextEncoder(setup), [long], choose_shapes([TASK.size(long)], 1, CPU))
    assert whole.arrays(whole.epoch(None)[0], (0, 0)).texts[0]["words"].shape == (12, 8)


def test_arrays():
    actual = TASK.arrays([DOCUMENT], 1, ((3, 8), (1, 32)), LABELS)
    assert actual["clusters"].shape == (1, 32, 10) and actual["genre"] == [3]
    table = np.argwhere(actual["clusters"][0])
    assert table.tolist() == [[0, 0], [2, 0], [2, 2], [6, 0], [7, 0], [9, 0]]
    assert actual["clusters"][0, 2, 2] == actual["clusters"][0, 6, 0] == 2
    assert_array_equal(actual["speakers"][0, :13], [0] * 6 + [1] * 3 + [0] * 4)
    (text,) = TASK.from_words([SENTENCES], LABELS)
    unknown = TASK.arrays([text], 1, ((3, 8), (1, 32)), LABELS)
    assert unknown["genre"] == [3]  # the most frequent one of the training documents
    assert not unknown["speakers"].any() and not unknown["clusters"].any()


def test_spans_that_are_too_wide_are_not_gold():
    labels = {**LABELS, "max_span_width": 2}
    actual = TASK.arrays([DOCUMENT], 1, ((3, 8), (1, 32)), labels)["clusters"]
    assert actual.shape[2] == 2 and actual[0, 2].tolist() == [1, 0]


def test_what_a_user_sees():
    assert TASK.show(DOCUMENT, CLUSTERS[:2]).split("\n") == [
        "[1 Ada] saw [2 [1 her] own mother] .",
        "[2 She] waved .",
        "[1 Ada] waved back .",
    ]
    (_, second) = TASK.as_json(DOCUMENT, CLUSTERS[:2])["clusters"]
    assert second[0] == {"text": "her own mother", "start": 2, "end": 5}


def test_a_step_reads_one_document():
    with pytest.raises(UserError, match="config.train.batch_size: expected 1"):
        task_config({"task": "coref", "train": {"batch_size": 2}})
