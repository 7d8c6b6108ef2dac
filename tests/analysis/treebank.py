"""A small treebank, and experiments as a user runs them."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import numpy as np

from tests.end_to_end.commands import Commands, wait

ROOT = Path(__file__).parents[2]
# Two sentences with comments, a multiword token and an empty node.
PECULIAR = """\
# newdoc id = made-up
# text = I don't row.
1\tI\tI\tPRON\tPRP\t_\t4\tnsubj\t_\t_
2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
2\tdo\tdo\tAUX\tVBP\t_\t4\taux\t_\t_
3\tn't\tnot\tPART\tRB\t_\t4\tadvmod\t_\t_
4\trow\trow\tVERB\tVB\t_\t0\troot\t_\tSpaceAfter=No
5\t.\t.\tPUNCT\t.\t_\t4\tpunct\t_\t_

# text = You row, and I fish.
1\tYou\tyou\tPRON\tPRP\t_\t2\tnsubj\t_\t_
2\trow\trow\tVERB\tVBP\t_\t0\troot\t_\t_
3\t,\t,\tPUNCT\t,\t_\t5\tpunct\t_\t_
4\tand\tand\tCCONJ\tCC\t_\t5\tcc\t_\t_
4.1\trow\trow\tVERB\tVBP\t_\t_\t_\t2:conj\t_
5\tI\tI\tPRON\tPRP\t_\t2\tconj\t_\t_
6\tfish\tfish\tNOUN\tNN\t_\t5\torphan\t_\t_
"""
WORDS = {"NOUN": "boat lake oar shore", "VERB": "drifts sinks waits", "ADJ": "old wet green", "DET": "the a this"}


def plain_sentences(number: int, seed: int) -> str:
    """Returns sentences of a determiner, sometimes an adjective, a noun and a verb."""
    random, text = np.random.default_rng(seed), ""
    for _ in range(number):
        tags = ["DET", "ADJ", "NOUN", "VERB"] if random.random() < 0.5 else ["DET", "NOUN", "VERB"]
        for position, tag in enumerate(tags, 1):
            word = random.choice(WORDS[tag].split())
            text += f"{position}\t{word}\t{word}\t{tag}\t_\t_\t0\t_\t_\t_\n"
        text += "\n"
    return text


def run_experiment(folder: Path, script: Path, *arguments: str) -> str:
    """Returns what `python SCRIPT ARGUMENTS` prints in the folder."""
    done = wait(Commands(folder).call("tests.analysis.treebank:as_main", str(script), *arguments))
    assert done.status == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def as_main(script: str, *arguments: str) -> None:
    """Runs a script as Python does, which finds the modules next to it."""
    sys.argv, sys.path[0] = [script, *arguments], str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")
