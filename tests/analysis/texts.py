"""Writes small inputs of the analyses, and a biLM with random parameters."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from elmo_jax import EmbeddingBiLM, PretrainedBiLM, export_bilm
from elmo_jax.checkpoints.layout import fingerprint, flatten, parameter_shapes, unflatten
from elmo_jax.config import CharCNNConfig, LSTMConfig, ModelConfig
from elmo_jax.types import Tree

CONFIG = ModelConfig(CharCNNConfig(4, ((1, 4), (2, 6)), 1), LSTMConfig(cells=9, projection=6))

INDEX = """\
bank%1:14:00:: 08420278 2 20
bank%1:17:01:: 09213565 1 25
bank%2:40:00:: 02311387 1 1
fish%1:05:00:: 02512053 1 12
fish%2:35:01:: 01140794 1 5
fruit_fly%1:05:00:: 02203362 1 0
green%3:00:01:: 00375628 1 3
green%5:00:00:unripe:00 02279723 2 1
group%1:03:00:: 00031264 1 50
"""

# two files of SemCor: an expression, two keys, a syntactic mark, a sense that WordNet 3.0 does not have, `&`, `_to`
TAGFILE_A = """\
<contextfile concordance=brown>
<context filename=br-a01 paras=yes>
<p pnum=1>
<s snum=1>
<wf cmd=ignore pos=DT>The</wf>
<wf cmd=done rdf=group pos=NNP lemma=group wnsn=1 lexsn=1:03:00:: pn=group>Old_River_Bank</wf>
<punc>&</punc>
<wf cmd=done pos=VB lemma=fish wnsn=1;2 lexsn=2:35:01::;2:35:09::>fished</wf>
<wf cmd=ignore pos=TO>_to</wf>
<wf cmd=done rdf= pos=NN ot=notag>65</wf>
<punc>.</punc>
</s>
</p>
<p pnum=2>
<s snum=2>
<wf cmd=done pos=NN lemma=bank wnsn=1 lexsn=1:17:01::>bank</wf>
<wf cmd=done pos=JJ lemma=green wnsn=2 lexsn=5:00:00:unripe(a):00>green</wf>
<wf cmd=done sep="-" pos=JJ lemma=such wnsn=0 lexsn=5:00:01:specified:00>such</wf>
</s>
</p>
</context>
</contextfile>
"""
TAGFILE_V = """\
<contextfile concordance=brownv>
<context filename=br-n05 paras=yes>
<p pnum=1>
<s snum=1>
<wf cmd=done pos=VB lemma=Fish wnsn=1 lexsn=2:35:01::>fish</wf>
<wf cmd=done pos=NN lemma=bank wnsn=2 lexsn=1:14:00::>bank</wf>
</s>
</p>
</context>
</contextfile>
"""

DATA_XML = """\
<?xml version="1.0" encoding="UTF-8" ?>
<corpus lang="en" source="tiny">
<text id="d000">
<sentence id="d000.s000">
<wf lemma="the" pos="DET">The</wf>
<instance id="d000.s000.t000" lemma="Fruit fly" pos="NOUN">fruit  flies</instance>
<wf lemma="&apos;s" pos="PRT">&apos;s</wf>
<instance id="d000.s000.t001" lemma="bank" pos="NOUN">bank</instance>
</sentence>
<sentence id="d000.s001">
</sentence>
<sentence id="d000.s002">
<instance id="d000.s002.t000" lemma="green" pos="ADJ">green</instance>
</sentence>
</text>
</corpus>
"""
GOLD = """\
d000.s000.t000 fruit_fly%1:05:00::
d000.s000.t001 bank%1:14:00:: bank%1:17:01::
d000.s002.t000 green%3:00:09::
"""


def write_semcor(folder: Path) -> Path:
    """Writes SemCor's folder, with files in two of its parts."""
    for part, name, text in (("brown1", "br-a01", TAGFILE_A), ("brownv", "br-n05", TAGFILE_V)):
        files = folder / part / "tagfiles"
        files.mkdir(parents=True)
        (files / name).write_text(text)
    return folder


def write_framework(folder: Path, name: str, data: str = DATA_XML, gold: str = GOLD) -> Path:
    """A set of the all-words framework; returns the path of its text."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.gold.key.txt").write_text(gold)
    path = folder / f"{name}.data.xml"
    path.write_text(data)
    return path


def random_params(seed: int = 0, config: ModelConfig = CONFIG) -> Tree:
    """Returns random parameters."""
    random = np.random.default_rng(seed)
    shapes = parameter_shapes(config)
    return unflatten({name: random.normal(0, 0.4, shape).astype("f4") for name, shape in shapes.items()})


def tiny_bilm(seed: int = 0) -> EmbeddingBiLM:
    """Returns a biLM with random parameters."""
    params = random_params(seed)
    return EmbeddingBiLM.of(PretrainedBiLM(CONFIG, params, None, {}, fingerprint(flatten(params))))


def write_bilm(path: Path, seed: int = 0, config: ModelConfig = CONFIG) -> Path:
    """Writes the export of a biLM with random parameters."""
    export_bilm(path, config, random_params(seed, config))
    return path
