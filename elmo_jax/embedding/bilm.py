"""The biLM that `elmo_jax.load_bilm` returns, which computes vectors, makes modules for task models and is exported.

Shapes: B sentences, T words of the longest, W characters per word, L LSTM layers, P projection.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from elmo_jax.checkpoints.export import PretrainedBiLM
from elmo_jax.checkpoints.open import BiLMSource, open_bilm
from elmo_jax.distributed.mesh import make_mesh
from elmo_jax.embedding import embed as embedding
from elmo_jax.embedding.embed import BosEos, CarryState, character_ids
from elmo_jax.embedding.engine import Engine
from elmo_jax.embedding.word_table import WordTable
from elmo_jax.errors import UserError
from elmo_jax.model.bilm import BiLM, LSTMForm
from elmo_jax.model.elmo import ELMo
from elmo_jax.model.precision import Precision, standard_numerics
from elmo_jax.settings import choice
from elmo_jax.types import Tree

# How many words are encoded at a time. A call has some hundreds of new words, and chunks without words are skipped.
ENCODER_CHUNK = {"cpu": 128}


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class EmbeddingBiLM(PretrainedBiLM):
    """A trained biLM that computes vectors.

    Attributes:
      precision: the precision of the matrix products.
      devices: the devices that `embed` uses; if empty, JAX's default device.
      one_program: whether accelerators compile one program for texts of any size. For the other attributes see
        `PretrainedBiLM`.
    """

    precision: Precision = Precision.FLOAT32
    devices: tuple[jax.Device, ...] = ()
    one_program: bool = False

    @classmethod
    def of(cls, bilm: PretrainedBiLM, precision: Precision = Precision.FLOAT32) -> "EmbeddingBiLM":
        """Makes an `EmbeddingBiLM` of a pretrained biLM.

        BFLOAT16 rounds the operands of matrix products, which is faster on accelerators. On the two published fixtures,
        whose values have a root mean square of 0.3 and 0.6, the measured errors were at most 0.0045 and 0.019.
        """
        return cls(bilm.config, bilm.params, bilm.vocabulary, bilm.info, bilm.fingerprint, precision)

    @functools.cached_property
    def model(self) -> BiLM:
        platform = jax.default_backend()
        chunk = ENCODER_CHUNK.get(platform, 512)
        return BiLM(self.config, 0, self.precision, LSTMForm.of(platform), chunk, parent=None)  # also inside a module

    def on(self, devices: Sequence[jax.Device]) -> "EmbeddingBiLM":
        """Returns this biLM with `embed` on the given devices of this process, which divide the rows among them.

        The vectors are the same on any number of devices, up to rounding.

        Raises:
          UserError: there is no device, or one is given twice.
        """
        if not devices or len(set(devices)) != len(devices):
            raise UserError(f"devices: expected at least one device, each of them once, got {devices}")
        return dataclasses.replace(self, devices=tuple(devices))

    def __getstate__(self) -> dict[str, Any]:
        # A pickled copy uses the default device of its process.
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)} | {"devices": ()}

    @functools.cached_property
    @standard_numerics()
    def engine(self) -> Engine:
        """The programs that compute vectors, with the parameters on their devices."""
        mesh = make_mesh(self.devices or list(jax.device_put(0).devices()))
        return Engine(self.model, self.params, mesh, self.one_program)

    @property
    def words(self) -> WordTable:
        """The context-free vectors of words: `bilm.words(["the", "cat"])`, with the last 65,536 words in a table."""
        return self.engine.words

    @standard_numerics()
    def embed(
        self,
        sentences: Sequence[Sequence[str]],
        carry: Tree | None = None,
        state: str | CarryState = "reset",
        bos_eos: str | BosEos = "drop",
    ) -> tuple[np.ndarray, np.ndarray, Tree]:
        """Computes the vectors of sentences (paper, section 3.2).

        Layer 0 is the token vector twice, and layer j is the concatenation [forward; backward]; of a forward-only
        language model, all vectors have P numbers. Several threads may call this method at the same time.

        The original programs keep the LSTM state of every row from one call to the next without telling the user, so
        that the same text gets different vectors in the first two calls. Here `state` determines the initial state:

          `"reset"`: every call starts from zeros, so that the vectors of a sentence depend on that sentence alone.
          `"carry"`: row b continues from the state at the end of row b in the previous call, as in bilm-tf and
            AllenNLP. The caller passes the carry that the previous call returned, or None for zeros in the first call.
            A smaller batch leaves the state of the other rows unchanged, and the new rows of a larger batch start from
            zeros.
          `"warm_up"`: the batch is run twice, first from zeros and then from the state that this leaves, and the second
            result is returned. Users of bilm-tf and AllenNLP are advised to do this by hand.

        Args:
          sentences: B lists of words, of any length including 0, in any Unicode characters. Only the first 48 bytes of
            a word are read.
          carry: the carry of the previous call, for `state="carry"` only.
          state: a `CarryState` or its name.
          bos_eos: `"keep"` for the vectors of the boundary tokens too, first and last in every sentence, which then has
            T + 2; or `"drop"`.

        Returns:
          layers: [B, L+1, T, 2P] NumPy float32, with T the length of the longest sentence. The boundary tokens are run
            through the LSTMs and removed unless they are kept; positions beyond a sentence's length are zero.
          mask: [B, T] bool, true for words.
          carry: `{"layer_j": State([2, R, C], [2, R, P])}`, the states at the ends of the rows, with R the most rows so
            far, for the next call with `state="carry"`; `{}` with `state="reset"`.

        Raises:
          UserError: a sentence is a string, a word is not a string or cannot be encoded, the carry is of another model,
            or a carry was passed that would not be used.
        """
        return embedding.embed(self.engine, sentences, carry, state, bos_eos)

    def character_ids(self, sentences: Sequence[Sequence[str]], rows: int = 0, steps: int = 0) -> np.ndarray:
        """Returns the input of `ELMo` for sentences, with as many characters per word as this biLM reads.

        A minimal size lets batches have the same shape, so that no further program is compiled; `ELMo` gives the same
        vectors with it, up to rounding.

        Args:
          sentences: B lists of words.
          rows: the minimal B; empty sentences are added up to it.
          steps: the minimal T; positions are added up to it.

        Returns:
          Character ids + 1, int32 [B, T, W], zeros beyond the end of a sentence; W is `max_characters` of the biLM.

        Raises:
          UserError: a sentence is a string, or a word is not a string or cannot be encoded.
        """
        return character_ids(sentences, self.config.char_cnn.max_characters, rows, steps)

    def elmo(self, **settings: Any) -> ELMo:
        """Makes the module for a task model; `settings` are the attributes of `ELMo` (`num_mixes`, `dropout`, …)."""
        chosen: dict[str, Any] = {"precision": self.precision, "form": self.model.form} | settings
        if chosen.get("trainable"):
            chosen["initial"] = functools.partial(frozen_tree, self)
        return ELMo(self.config, self.vectors_fingerprint, **chosen)


def load_bilm(source: BiLMSource, precision: str | Precision = Precision.FLOAT32) -> EmbeddingBiLM:
    """Reads a biLM, verifies it, and returns it ready for use.

    Args:
      source: the name of a packaged biLM (`english`), a run's folder, an export, `hf:USER/NAME[@REVISION]` on the Hub;
        a published biLM: the pair (options.json, weights.hdf5), or a folder or zip file with both, each of which may be
        a URL, `https://HOST/FILE[#sha256=HEX]`; or a checkpoint of bilm-tf: its folder, or the triple (options.json,
        model.ckpt-N, vocabulary file) to have its softmax too, unless the folder has a `vocab.txt`.
      precision: the precision of the matrix products, `"float32"` or `"bfloat16"`.

    Raises:
      UserError: the source is not a biLM, is damaged, or has another layout version; or there is no such precision.
    """
    return EmbeddingBiLM.of(open_bilm(source), choice(Precision, precision, "precision"))


def frozen_tree(bilm: PretrainedBiLM) -> dict[str, Any]:
    """Returns a new copy of the parameter tree without softmax on the default device, which may be donated.

    The arrays are concrete, also where a model is made while JAX traces.
    """
    with standard_numerics():
        return jax.device_put({name: tree for name, tree in bilm.params.items() if name != "softmax"}, may_alias=False)
