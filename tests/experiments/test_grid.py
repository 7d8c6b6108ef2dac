"""Tests `experiments/paper/grid.py`, the claims of the paper and what docs/results.md says of them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import gains
import grid
import page
from claims import TABLES, TASKS, claims, interval, judged
from page import draw_shares, draw_weights
from tests.experiments import quick_paper

CARRIED = {"input": {"weights": [0.2, 0.7, 0.1], "scale": 1.0}, "output": {"weights": [0.36, 0.34, 0.3], "scale": 1.0}}


def row(*values: float, bilm: str | None = "d8", metric: str = "f1") -> dict[str, Any]:
    """A row of `gains.json` with one value per seed, on dev and test."""
    seeds = [
        {"seed": seed, "step": 40, "seconds": 30.0, "dev": {metric: value}, "test": {metric: value}, "elmo": CARRIED}
        | {"curve": [[0, 0.0], [40, value]]}
        for seed, value in enumerate(values)
    ]
    part = {"mean": sum(values) / len(values), "sd": 1.0, "n": len(values)}
    return {"task": "srl", "metric": metric, "bilm": bilm, "dev": part, "test": part, "seeds": seeds}


def test_differences_are_paired_and_judged() -> None:
    assert interval([1.0, 2.0, 3.0]) == pytest.approx((2.0, 2 - 2.4841, 2 + 2.4841), abs=1e-3)  # t = 4.3027
    actual = {"baseline": row(50, 60, 70), "ELMo": row(52, 62.1, 71.9)}
    (claim,) = claims("table1", "srl", actual)
    assert claim[:2] == ("ELMo - baseline", "+3.2 (17.2%)")  # Table 1 of the paper
    assert claim.ours == "+2.00 [+1.75, +2.25] (5.0%)" and claim.verdict == "seen"
    assert judged("", "", [1.0, -1.0], 1).verdict == "not seen" and judged("", "", [-1.0, -1.1], -1).verdict == "seen"
    assert judged("", "", [-1.0, -1.1], 0).verdict == "not seen" and judged("", "", [-1.0, 1.0], 0).verdict == "seen"
    (alone,) = claims("table1", "srl", {"baseline": row(50), "ELMo": row(52)})
    assert alone.ours.startswith("+2.00 (n = 1)") and alone.verdict == "open"
    (perfect,) = claims("table1", "srl", {"baseline": row(100, 100), "ELMo": row(100, 100)})
    assert perfect[2:] == ("+0.00 [+0.00, +0.00]", "not seen")
    (missing,) = claims("table1", "srl", {"baseline": row(50, 60)})
    assert missing[2:] == ("not measured", "open")


def test_relative_increases_are_those_of_the_paper() -> None:
    percentages = [re.findall(r"\((.*)\)", claims("table1", task, {})[0].paper)[0] for task in TASKS]
    assert percentages == ["24.9%", "5.8%", "17.2%", "9.8%", "21%", "6.8%"]  # Table 1


@pytest.mark.filterwarnings("ignore:Precision loss")  # of seeds that are all equal, as those of training never are
def test_what_the_paper_claims_of_layers_shares_and_places() -> None:
    actual = {name: row(1, 1.1) for name in TABLES["table2"].rows}
    *_, even = claims("table2", "squad", actual)
    assert even.ours == "0.367" and even.verdict == "not seen"
    assert TABLES["table2"].of("squad")["last layer only"] == "input+last"  # the paper's placement
    assert TABLES["table2"].of("snli")["last layer only"] == "all+last"
    output = next(claim for claim in claims("table3", "srl", {}) if claim.text == "output only - baseline")
    assert output.paper == "-0.7"
    figure2 = {task: {"input": row(1, 2), "output": row(1, 2)} for task in ("srl", "coref", "squad")}
    actual = [claim.ours for claim in claims("figure2", "coref", figure2["coref"], figure2)]
    assert actual == ["+0.500 [+0.500, +0.500]", "+0.200 [+0.200, +0.200]", "+0.050 [+0.050, +0.050]"]
    for task, tops in {"coref": (0.8, 0.9), "squad": (0.69, 0.71)}.items():
        for seed, top in zip(figure2[task]["input"]["seeds"], tops, strict=True):
            seed["elmo"] = {"input": {"weights": [0.1, top, 0.9 - top]}}
    less, equal = claims("figure2", "srl", figure2["srl"], figure2)[1:3]
    # Welch's interval: 0.7 - 0.85 with a standard error of 0.05 and one degree of freedom, of which the t is 12.706
    assert less.text.endswith("that of coref") and less.ours == "-0.150 [-0.785, +0.485]" and less.verdict == "not seen"
    assert equal.text.endswith("that of squad") and equal.ours.startswith("+0.00") and equal.verdict == "not seen"
    assert claims("figure2", "srl", figure2["srl"])[1].verdict == "open"  # nothing to compare it with
    table7 = {"GloVe": row(60, 61), "ELMo type layer": row(61, 62.1), "ELMo": row(64, 65)}
    contextual = claims("table7", "srl", table7)[-1]
    assert (contextual.paper, contextual.ours[:5], contextual.verdict) == ("+2.7", "+1.90", "seen")
    shares = {
        f"{name}, {share}": row(v, v + 1) for share, v in (("10%", 50), ("1%", 30)) for name in ("baseline", "ELMo")
    }
    shares["ELMo, 1%"] = row(49, 52)
    by_text = {claim.text: claim for claim in claims("figure1", "srl", shares)}
    assert by_text["gain at 1% - gain at 10%"].ours.startswith("+20.00 [")
    assert by_text["ELMo, 1% - baseline, 10%"].verdict == "seen"
    assert by_text["ELMo - baseline, 100%"][1:3] == ("above 0", "not measured")


def test_rows_of_which_one_alone_is_normalized_are_not_compared() -> None:
    def verdict(last: list[str], strong: list[str]) -> str:
        actual = {"last layer only": row(50, 51) | {"settings": ["elmo.layers=all", *last]}}
        actual["all layers, λ = 1"] = row(52, 53) | {"settings": ["elmo.layers=all", *strong]}
        wanted = "all layers, λ = 1 - last layer only"
        return next(claim.verdict for claim in claims("table2", "srl", actual) if claim.text == wanted)

    top, tokens, batch = "elmo.layers=top", "elmo.layer_norm=tokens", "elmo.layer_norm=without_bos_eos"
    assert verdict([top], []) == "seen"
    assert verdict([top], [batch]) == "open"
    assert verdict([top, batch], [batch]) == "open"  # the norm over a batch is one of the mix of all layers
    assert verdict([top, batch], ["elmo.layer_norm=none"]) == "seen"
    assert verdict([top], [tokens]) == "open"
    own = {"ELMo, last layer only": row(50, 51), "CoVe, last layer only": row(48, 49) | {"layer_norm": "tokens"}}
    assert claims("cove", "snli", own)[3].verdict == "open"  # the norm of its experiment
    practice = {"ELMo": row(50, 51), "layer norm": row(52, 53.1) | {"settings": [tokens]}, "input only": row(51, 52)}
    practice["layer norm, input only"] = row(50, 51.1) | {"settings": [tokens]}
    assert [claim.verdict for claim in claims("practice", "snli", practice)] == ["open", "open", "seen", "not seen"]


def test_a_table_has_the_rows_of_its_settings() -> None:
    runs = page.Runs(page.FOLDER.parent / "task_snli.py", "english", page.FOLDER, (), "cove", "tuned")
    numbers = {"none": row(1), "all+batch": row(2)}
    assert page.trained(page.TUNED, "snli", numbers, runs) == {}
    numbers["all+two"] = row(4)  # a name of an earlier version, whose settings are not known
    assert page.trained(TABLES["table1"], "snli", numbers, runs) == {"baseline": row(1)}
    numbers |= {"all": row(3), "all+tokens": row(5), "all+unscaled+tokens": row(6)}
    actual = page.trained(TABLES["practice"], "snli", numbers, runs)  # which compares two norms
    assert actual == {"baseline": row(1), "ELMo": row(3), "layer norm": row(5), "layer norm, γ = 1": row(6)}


def test_the_type_layer_of_the_paper_is_an_input() -> None:
    for task in ("squad", "snli", "srl"):
        runs = page.Runs(page.FOLDER.parent / f"task_{task}.py", "english", page.FOLDER)
        config = runs.config(TABLES["table7"].of(task)["ELMo type layer"])
        assert (config.elmo.layers, config.elmo.where, config.word_vectors.dim) == ("token", "input", 0)


def test_what_the_paper_says_without_numbers() -> None:
    actual = {"input only": row(60, 61), "input & output": row(59, 60.1), "λ = 0": row(50, 60), "λ = 1": row(50.1, 60)}
    assert [claim.verdict for claim in claims("table3", "coref", actual)] == ["seen", "open"]
    assert [claim.verdict for claim in claims("lambda", "ner", actual)] == ["open", "open", "seen"]
    actual["λ = 1"] = row(51, 59)  # the interval has zero in it, and more than one point too
    assert claims("lambda", "ner", actual)[2].verdict == "not seen"
    assert judged("", "", [1.0, 1.1], None).verdict == "not seen"
    assert len(claims("practice", "snli", {})) == 4


def test_steps_until_the_baseline_is_passed() -> None:
    def claim(*best: float) -> tuple[str, ...]:
        elmo = row(60, 61)
        elmo["seeds"][0]["curve"] = [[0, 40.0], [10, 51.0], [20, 60.0]]
        elmo["seeds"][1]["curve"] = [[0, 40.0], [10, 50.0], [20, 61.0]]
        actual = claims("figure1", "srl", {"baseline, 100%": row(*best), "ELMo, 100%": elmo})
        (steps,) = (claim for claim in actual if "best score is passed" in claim.text)
        return steps[1:]

    assert claim(50, 60) == ("10 of 486 epochs (98% fewer)", "15 of 40 (62% fewer)", "seen")
    assert claim(50, 70)[1:] == ("not passed with 1 of 2 seeds", "not seen")


def test_the_figures_are_drawn(tmp_path: Path) -> None:
    labels = [f"{name}, {share}" for share in ("100%", "1%") for name in ("baseline", "ELMo")]
    draw_shares(tmp_path / "1.png", {"snli": {label: row(50, 60) for label in labels}})
    draw_weights(tmp_path / "2.png", {task: {"input": row(1)} for task in TASKS} | {"snli": {"output": row(1)}})
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in ("1.png", "2.png"))


def test_results_have_the_paper_s_tables_and_claims() -> None:
    """They are what `python experiments/paper/page.py` makes of the numbers in the JSON files."""
    text = page.PAGE.read_text()
    assert page.filled(text) == text


@pytest.mark.slow
def test_rows_are_shared_resumed_and_written_one_by_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_paper.write_experiments(tmp_path)
    command = [*quick_paper.command(tmp_path, "table3"), "--tasks", "srl"]
    train, trained = gains.elmo_jax, []

    def once(arguments: list[str]) -> int:
        trained.append(Path(arguments[arguments.index("--workdir") + 1]).name)
        return 143 if len(trained) == 3 else train(arguments)  # SIGTERM arrives at the third row

    monkeypatch.setattr(gains, "elmo_jax", once)
    assert grid.main(command) == 143
    numbers = json.loads((tmp_path / "runs" / "srl" / "gains.json").read_text())
    assert trained == ["none", "input", "both"] and set(numbers) == {"none", "input"}
    assert numbers["none"]["bilm"] is None and len(numbers["input"]["bilm"]) == 64
    assert all(seed["seconds"] > 0 and seed["step"] > 0 for seed in numbers["input"]["seeds"])
    capsys.readouterr()
    assert grid.main([*command[:1], "table1", *command[1:]]) == 0
    printed = capsys.readouterr().out
    assert trained[3:] == ["none", "input", "both", "output", "none", "input"]  # the row `all` of Table 1 is `input`
    assert re.search(r"^\| srl, paper \| 81\.6 \| 84\.7 \| 84\.3 \| 80\.9 \|$", printed, re.MULTILINE)
    assert re.search(r"^\| srl, here \| (\d+\.\d\d ± \d+\.\d\d \(2\) \| ?){4}$", printed, re.MULTILINE)
    claim = (
        r"^\| Table 3, srl: output only − baseline \| -0\.7 \| [+-]\d+\.\d\d \[.*\] \| (not )?seen \| `grid.py table3"
    )
    assert re.search(claim, printed, re.MULTILINE)

    # The numbers are enough to continue on another machine.
    for name in ("none", "input", "both", "output"):
        shutil.rmtree(tmp_path / "runs" / "srl" / name)
    monkeypatch.delattr(gains, "elmo_jax")
    assert grid.main(command) == 0
    assert capsys.readouterr().out in printed
    for more, message in (
        (["--config.train.epochs=3"], "the row none has the settings [], not ['train.epochs=3']; remove it"),
        (["--bilm", "english"], "the row input is of the biLM "),
    ):
        with pytest.raises(SystemExit, match="2"):
            grid.main([*command, *more])
        assert f"gains.json: {message}" in capsys.readouterr().err


def test_what_is_missing_is_named_with_its_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["table1", "table5", "--bilm", "english", "--workdir", str(tmp_path / "runs"), "--data", str(tmp_path)]
    assert grid.main([*command, "--tasks", "ner,snli"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": no folder has ")[0] for line in lines] == [
        "skipped: table1, snli",
        "skipped: table1, ner",
        "skipped: table5",
    ]
    for line, name in zip(lines, ("task_snli", "task_ner", "paper/table5"), strict=True):
        assert line.endswith(f"experiments/{name}.py says where it is")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--tasks", "pos"], "--tasks: 'pos' is none of squad, snli"),
        (["--seeds", "3"], "unknown option '--seeds'"),
        (["--config.elmo.regularization=0"], "--config.elmo.regularization: the row all+strong sets it"),
        (["--config.elmo.regularisation=0"], "regularisation=0: no such setting"),
        (["--experiments", "nowhere"], "no such file"),
    ],
)
def test_mistakes_are_named(capsys: pytest.CaptureFixture[str], extra: list[str], message: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        grid.main(["table2", "--bilm", "english", "--tasks", "snli", *extra])
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_make_paper_quick(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quick_paper.main([str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for title in ("Table 1", "Table 2", "Table 3", "Table 4", "Table 5", "Table 6", "Table 7", "Figure 1", "Figure 2"):
        assert re.search(rf"^(\*\*)?{title}[:,]", printed, re.MULTILINE), title
    assert all((tmp_path / "runs" / f"figure{number}.png").is_file() for number in (1, 2))
