import pytest

from elmo_jax.tasks.squad.reader import tokenize


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The cat sat.", "The cat sat ."),
        ("Mr. Smith of the U.S. Army left. He won.", "Mr. Smith of the U.S. Army left . He won ."),
        ('He said "no." Then (at last) it ended.)', 'He said " no . " Then ( at last ) it ended . )'),
        ("Wait... what?! Yes; no: a,b", "Wait ... what ? ! Yes ; no : a , b"),
        ("10,000 at 3:15, a:b", "10,000 at 3:15 , a : b"),
        ("3.5% of #1 & x@y", "3.5 % of # 1 & x @ y"),
        ("well-known 1990–1995 a—b 3−2", "well - known 1990 – 1995 a — b 3 − 2"),
        ("and/or ~5 20°C", "and / or ~ 5 20 ° C"),
        ("it's the dogs' ‘own’ cat’s", "it ' s the dogs ' ‘ own ’ cat ’ s"),
        ("don't can’t n't-shirt", "do n ' t ca n ’ t n ' t - shirt"),
        ("``a'' “b” \"c\"", '" a " " b " " c "'),
        ("US$5 £3 ¢4 €2 ¥1 ₹9", "US $ 5 £ 3 ¢ 4 € 2 ¥ 1 ₹ 9"),
        ("a_b __init__ _x a__b", "a _ b __init__ _x a__b"),
        ("[a] {b} <c>", "[ a ] { b } < c >"),
        ("a\u00a0b\n\n c\u202fd", "a b c d"),
        ("Ünïcödé Ærø", "Ünïcödé Ærø"),
        (" \n", ""),
        ("", ""),
    ],
)
def test_words(text, words):
    actual = tokenize(text)
    assert actual.words == words.split()
    for word, start, end in zip(actual.words, actual.starts, actual.ends, strict=True):
        assert text[start:end] == word or (word == '"' and text[start:end] in ("``", "''", "“", "”"))
    # only spaces are left out, and nothing occurs twice
    assert "".join(text[a:b] for a, b in zip(actual.starts, actual.ends, strict=True)) == "".join(text.split())


def test_words_that_overlap_characters():
    tokens = tokenize("ab cd-ef.")  # ab cd - ef .
    assert tokens.overlapping(0, 2) == (0, 0)
    assert tokens.overlapping(1, 4) == (0, 1)
    assert tokens.overlapping(4, 9) == (1, 4)
    assert tokens.overlapping(2, 3) is None  # the space
    assert tokens.overlapping(3, 3) is None
