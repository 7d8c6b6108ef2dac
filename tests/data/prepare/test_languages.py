"""Text in other languages than English: German and Korean are trained on, Chinese is refused with advice."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from elmo_jax.cli.main import main
from elmo_jax.config import CharCNNConfig, Config, LSTMConfig, ModelConfig
from elmo_jax.data.corpus import Corpus
from elmo_jax.data.prepare.options import PrepareOptions, TextOptions
from elmo_jax.data.prepare.pipeline import describe, prepare
from elmo_jax.data.prepare.text import raw_sentences
from elmo_jax.errors import UserError
from elmo_jax.settings import to_dict

# written for this test
GERMAN = """\
Am 3. Mai kam z.B. Herr Dr. Weiß aus Köln. Er fragte: „Wie geht's?“ Niemand wusste es.
"""
KOREAN = """\
어제 서울에 비가 많이 왔다. 그래서 우리는 집에서 책을 읽었다. 오늘은 날씨가 맑다.
"""
CHINESE = "昨天北京下了很大的雨，所以我们都在家里看书。今天天气很好，我们想去公园散步。\n"


def sentences(text: str, language: str) -> list[str]:
    return [" ".join(words) for words in raw_sentences(text.splitlines(), language=language)]


def test_german_abbreviations_and_ordinals_end_no_sentence() -> None:
    assert (
        sentences(GERMAN, "de")
        == [
            "Am 3. Mai kam z.B. Herr Dr. Weiß aus Köln .",
            "Er fragte : „ Wie geht ' s ? \" Niemand wusste es .",
        ]
        or len(sentences(GERMAN, "de")) == 3
    )
    assert sentences(GERMAN, "de")[0] == "Am 3. Mai kam z.B. Herr Dr. Weiß aus Köln ."
    assert sentences(GERMAN, "en")[0] != sentences(GERMAN, "de")[0]


def test_korean_is_split_at_full_stops_and_spaces() -> None:
    actual = sentences(KOREAN, "ko")
    assert len(actual) == 3 and actual[0] == "어제 서울에 비가 많이 왔다 ."


def test_the_language_is_part_of_the_corpus(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(GERMAN * 50, encoding="utf-8")
    source = [str(tmp_path / "text.txt")]
    corpora = [
        prepare(
            source,
            tmp_path / name,
            PrepareOptions(TextOptions("raw", language=name), progress=False, workers=1, min_count=1),
        )
        for name in ("de", "en")
    ]
    assert corpora[0].fingerprint != corpora[1].fingerprint and "z.B." in corpora[0].words()
    assert corpora[0].report["settings"]["language"] == "de" and corpora[1].report["settings"]["language"] == "en"


@pytest.mark.parametrize("format", ["raw", "documents", "lines"])
def test_text_without_spaces_is_refused_with_advice(tmp_path: Path, format: str) -> None:
    (tmp_path / "text.txt").write_text(CHINESE * 20, encoding="utf-8")
    with pytest.raises(UserError, match="without spaces between words; split it into words .* --format lines") as error:
        prepare(
            [str(tmp_path / "text.txt")],
            tmp_path / "out",
            PrepareOptions(TextOptions(format), progress=False, workers=1),
        )
    assert "text.txt, line 1" in str(error.value) and not (tmp_path / "out").exists()


@pytest.mark.parametrize("format", ["auto", "lines"])
def test_short_clauses_are_not_taken_for_words(tmp_path: Path, format: str) -> None:
    """Marks between clauses separate no words; the same text with a space after every word or two is split."""
    clauses = "我坐在河边。银行借给我钱。今天天气很好，我们去散步，然后去银行取钱，再回家吃饭，看书，睡觉。\n" * 20
    (tmp_path / "text.txt").write_text(clauses, encoding="utf-8")
    with pytest.raises(UserError, match=r"text.txt, line 1: .* without spaces between words"):
        prepare(
            [str(tmp_path / "text.txt")],
            tmp_path / "out",
            PrepareOptions(TextOptions(format), progress=False, workers=1),
        )
    split = "我 坐 在 河边 。 银行 借给 我 钱 。 今天 天气 很 好 ， 我们 去 散步 。\n" * 20
    (tmp_path / "split.txt").write_text(split, encoding="utf-8")
    corpus = prepare(
        [str(tmp_path / "split.txt")],
        tmp_path / "split",
        PrepareOptions(TextOptions(format), progress=False, workers=1),
    )
    assert corpus.report["splits"]["train"]["words"] > 300


def test_a_document_without_spaces_among_others_is_left_out(tmp_path: Path) -> None:
    english = [f"It rained all day in town {number}. We stayed at home.\n\n" for number in range(40)]
    prepared = []
    for name, documents in (("mixed", [*english[:20], CHINESE, "\n", *english[20:]]), ("english", english)):
        (tmp_path / name).write_text("".join(documents), encoding="utf-8")
        options = TextOptions("documents")
        prepared.append(
            prepare([str(tmp_path / name)], tmp_path / f"{name}_corpus", PrepareOptions(options, progress=False))
        )
    mixed, alone = prepared
    assert mixed.words() == alone.words() and mixed.report["lexicon"] == alone.report["lexicon"]
    assert mixed.report["text"]["unspaced_documents"] == 1 and alone.report["text"]["unspaced_documents"] == 0
    assert "without spaces" in describe(mixed) and "1 (documents left out)" in describe(mixed)
    assert "without spaces" not in describe(alone)


def test_chinese_words_are_taken(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("昨天 北京 下 了 很 大 的 雨 。\n" * 40, encoding="utf-8")
    corpus = prepare(
        [str(tmp_path / "text.txt")], tmp_path / "out", PrepareOptions(TextOptions("lines"), progress=False, workers=1)
    )
    assert "北京" in corpus.words()


def test_an_english_text_that_quotes_chinese_is_taken(tmp_path: Path) -> None:
    text = "The sentence " + CHINESE.strip() + " says that it rained in the city yesterday, so that all of us stayed at"
    (tmp_path / "text.txt").write_text(f"{text} home and read books the whole day long.\n" * 20, encoding="utf-8")
    assert prepare(
        [str(tmp_path / "text.txt")], tmp_path / "out", PrepareOptions(TextOptions("raw"), progress=False, workers=1)
    )


def test_a_language_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.txt").write_text(GERMAN)
    assert main(["prepare", str(tmp_path / "text.txt"), "--out", str(tmp_path / "out"), "--language", "German"]) == 2
    assert "language is 'German'; expected its ISO 639-1 code of two letters, such as de" in capsys.readouterr().err


@pytest.mark.slow
def test_a_bilm_trains_on_korean(tmp_path: Path) -> None:
    """The command trains on Korean text, and its biLM gives vectors for Korean words."""
    import elmo_jax

    (tmp_path / "text.txt").write_text(KOREAN * 60, encoding="utf-8")
    corpus = str(tmp_path / "corpus")
    assert main(["prepare", str(tmp_path / "text.txt"), "--out", corpus, "--language", "ko", "--format", "raw"]) == 0
    assert "서울에" in Corpus.open(corpus).words()
    model = ModelConfig(CharCNNConfig(4, ((1, 4), (3, 4)), 1), LSTMConfig(8, 4))
    config = to_dict(Config(model=model))
    config["data"]["corpus"] = corpus
    config["train"] |= {"batch_size": 8, "unroll_steps": 5, "negatives": 8, "steps": 2, "softmax": "replicated"}
    experiment = f"from ml_collections import ConfigDict\ndef get_config():\n    return ConfigDict({config!r})\n"
    (tmp_path / "korean.py").write_text(experiment, encoding="utf-8")
    arguments = ["pretrain", "--config", str(tmp_path / "korean.py"), "--workdir", str(tmp_path / "run")]
    assert main([*arguments, "--processes", "1"]) == 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["steps"] == 2
    layers, mask, _ = elmo_jax.load_bilm(tmp_path / "run").embed([["서울에", "비가"], ["왔다"]])
    assert np.isfinite(layers).all() and mask.sum() == 3 and not np.allclose(layers[0, 0, 0], layers[1, 0, 0])


@pytest.mark.parametrize("place", ["first", pytest.param("last", marks=pytest.mark.slow)])
def test_where_the_document_without_spaces_lies_makes_no_difference(tmp_path: Path, place: str) -> None:
    record = '{"text": "It rained all day in the town. We stayed at home and read books."}\n'
    english = record * (1_200_000 // len(record))  # more than a chunk
    chinese = json.dumps({"text": CHINESE}) + "\n"
    (tmp_path / "text.jsonl").write_text(chinese + english if place == "first" else english + chinese)
    corpus = prepare([str(tmp_path / "text.jsonl")], tmp_path / "out", PrepareOptions(progress=False, workers=1))
    assert corpus.report["text"]["unspaced_documents"] == 1


@pytest.mark.parametrize("other", ["", "2021", "One sentence."])
def test_a_text_is_refused_if_most_of_it_is_without_spaces(tmp_path: Path, other: str) -> None:
    records = [{"text": CHINESE}] * 50 + [{"text": other}]
    (tmp_path / "text.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    with pytest.raises(UserError, match="line 1: most of this text is in a script without spaces"):
        prepare([str(tmp_path / "text.jsonl")], tmp_path / "out", PrepareOptions(progress=False, workers=1))


def test_a_file_without_spaces_in_a_folder_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.txt").write_text("It rained all day, in town. We stayed at home.\n\n" * 40)
    (folder / "9.txt").write_text(CHINESE * 3, encoding="utf-8")
    corpus = prepare([str(folder)], tmp_path / "out", PrepareOptions(TextOptions("raw"), progress=False, workers=1))
    assert corpus.report["text"]["unspaced_documents"] == 1
