import pytest

from elmo_jax.tasks.coref.reader import Document, read
from tests.tasks.format_cases import message, write


def document(*sentences, name="nw/a_0001", part="000", speaker="Ann"):
    """Sentences of (word, coreference) as CoNLL-2012 has them."""
    text = f"#begin document ({name}); part {part}\n"
    for words in sentences:
        for i, (word, coreference) in enumerate(words):
            text += f"{name} {int(part)} {i} {word} X * - - - {speaker} * (ARG0*) {coreference}\n"
        text += "\n"
    return text + "#end document\n"


def clusters(tmp_path, *sentences, **options):
    (actual,) = read(write(tmp_path, document(*sentences)), **options)
    return actual.clusters


def test_documents(tmp_path):
    text = document(
        [("He", "(1)"), ("saw", "-"), ("Bo", "(0"), ("Li", "0)"), ("/.", "-")], [("Bo", "(0)"), ("/?", "-")]
    )
    text += document([("his", "(2)|(3"), ("dog", "3)")], [("his", "(2)")], name="12_novel", part="001", speaker="-")
    assert read(write(tmp_path, text)) == [
        Document(
            name="nw/a_0001",
            part="000",
            genre="nw",
            sentences=[["He", "saw", "Bo", "Li", "."], ["Bo", "?"]],
            speakers=[["Ann"] * 5, ["Ann"] * 2],
            clusters=[[(0, 0)], [(2, 3), (5, 5)]],
        ),
        Document(
            name="12_novel",
            part="001",
            genre=None,
            sentences=[["his", "dog"], ["his"]],
            speakers=[["-", "-"], ["-"]],
            clusters=[[(0, 0), (2, 2)], [(0, 1)]],
        ),
    ]


def test_singletons_may_be_dropped(tmp_path):
    sentence = [("a", "(0)"), ("b", "(1)"), ("c", "(0)")]
    assert clusters(tmp_path, sentence) == [[(0, 0), (2, 2)], [(1, 1)]]
    assert clusters(tmp_path, sentence, singletons="drop") == [[(0, 0), (2, 2)]]


def test_mentions_of_one_entity_nest(tmp_path):
    sentence = [("a", "(5|(5"), ("b", "5)"), ("c", "(5)"), ("d", "5)"), ("e", "(5"), ("f", "5)|(5"), ("g", "5)")]
    assert clusters(tmp_path, sentence) == [[(0, 1), (0, 3), (2, 2), (4, 5), (5, 6)]]


def test_clusters_with_a_common_mention_are_one(tmp_path):
    sentence = [("a", "(0)|(1)"), ("b", "(1)|(2)"), ("c", "(3)"), ("d", "(2)|(4)"), ("e", "(4)"), ("f", "(0)")]
    assert clusters(tmp_path, sentence) == [[(0, 0), (1, 1), (3, 3), (4, 4), (5, 5)], [(2, 2)]]


def test_a_mention_twice_in_one_cluster_is_one(tmp_path):
    assert clusters(tmp_path, [("a", "(0)|(0)"), ("b", "(0)")]) == [[(0, 0), (1, 1)]]


def test_an_empty_cell_is_no_mention(tmp_path):
    rows = ["d\t0\t0\tHe\t_\t_\t_\t_\t_\t_\t_\t_\t(1)", "d\t0\t1\tran\t_\t_\t_\t_\t_\t_\t_\t_\t"]
    (actual,) = read(write(tmp_path, "#begin document (d); part 0\n" + "\n".join(rows) + "\n#end document\n"))
    assert (actual.sentences, actual.clusters) == ([["He", "ran"]], [[(0, 0)]])


def test_a_document_without_words(tmp_path):
    (actual,) = read(write(tmp_path, document()))
    assert actual.sentences == actual.clusters == []


BEGIN = "#begin document (nw/a); part 0\n"
ROW = "nw/a 0 0 a X * - - - Ann * "


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\n" + ROW + "-\n", f"line 2: expected '#begin document (name); part 0', found {ROW + '-'!r}"),
        ("#end document\n", "line 1: #end document without a #begin document before it"),
        (
            "#begin document nw/a\n",
            "line 1: expected '#begin document (name); part 0', found '#begin document nw/a'",
        ),
        (BEGIN + BEGIN, "line 2: expected #end document, found '#begin document (nw/a); part 0'"),
        (BEGIN + ROW + "-\n", "line 2: the file ends inside the document 'nw/a', without #end document"),
        (BEGIN + "nw/a 0 0 a -\n", "line 2: expected at least 12 columns, found 5"),
        (
            BEGIN + ROW + "-\n" + ROW + "* -\n",
            "line 3: expected 12 columns, as in the first line of the sentence, found 13",
        ),
        (BEGIN + ROW + "(1\n" + ROW + "2)\n", "line 3: '2)' closes a mention that was not opened"),
        (BEGIN + ROW + "(1)|1)\n", "line 2: '1)' closes a mention that was not opened"),
        (
            BEGIN + ROW + "-\n" + ROW + "(1|(2\n\n" + ROW + "1)\n#end document\n",
            "line 3: '(2' opens a mention that the document does not close",
        ),
        (BEGIN + ROW + "12\n", "line 2: expected -, (12, 12) or (12) as coreference, found '12'"),
        (BEGIN + ROW + "(1)|-\n", "line 2: expected -, (12, 12) or (12) as coreference, found '-'"),
    ],
)
def test_files_that_are_no_documents(tmp_path, text, expected):
    assert message(read, write(tmp_path, text)) == expected
