import pytest

from elmo_jax.tasks.formats.lines import unescape, without_backslashes

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("word", "text"),
    [("-LRB-", "("), ("-rrb-", ")"), ("-LSB-", "["), ("``", '"'), ("''", '"'), ("1\\/2", "1/2"), ("\\*\\*", "**")],
)
def test_escapes_of_the_penn_treebank(word, text):
    assert unescape(word) == text


def test_other_words_stay():
    assert [unescape(word) for word in ["-", "'", "a\\b", "x-LRB-"]] == ["-", "'", "a\\b", "x-LRB-"]
    assert without_backslashes("-LRB-\\/") == "-LRB-/"
