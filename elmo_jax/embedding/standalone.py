"""Writes a biLM as a program that runs without this package (`elmo-jax export --format jax`).

Shapes: B sentences, T words of the longest, W characters per word, L LSTM layers, P projection.
"""

import inspect
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import export

from elmo_jax import characters
from elmo_jax.checkpoints.export import PretrainedBiLM
from elmo_jax.errors import UserError
from elmo_jax.files import atomic_folder, writing
from elmo_jax.model.bilm import BiLM
from elmo_jax.model.sentences import sentence_layers
from elmo_jax.runs.progress import Progress

PLATFORMS = ("cpu", "cuda", "tpu")
PROGRAM, CHARACTERS, VERSION = "bilm.jax", "characters.py", "jax_version.txt"


def write_program(bilm: PretrainedBiLM, out: Path) -> None:
    """Writes a folder with a biLM as a program for CPUs, NVIDIA GPUs and TPUs, which holds the parameters.

    The folder has `bilm.jax`, which `jax.export.deserialize` reads, `characters.py`, which needs only NumPy, and
    `jax_version.txt`, since later versions of JAX promise to read the program for six months only.
    The program maps character ids + 1, int32 [B, T, W] with any B and T of at least 1, to the layers, float32
    [B, L+1, T, 2P], and the mask of the words, bool [B, T], as `EmbeddingBiLM.character_ids` and `embed` define them.

    Raises:
      UserError: there is something at `out`, or it cannot be written.
    """
    if out.exists():
        raise UserError(f"{out}: exists; choose another name or remove it")
    params = {name: tree for name, tree in bilm.params.items() if name != "softmax"}
    model = BiLM(bilm.config)

    def embed(ids: jax.Array) -> tuple[jax.Array, jax.Array]:
        layers, mask = sentence_layers(model, params, ids)
        return layers[:, :, 1:-1] * mask[:, None, :, None], mask

    batch, steps = export.symbolic_shape("b, t")
    ids = jax.ShapeDtypeStruct((batch, steps, bilm.config.char_cnn.max_characters), jnp.int32)
    try:
        with Progress(f"exporting to {out}"):
            content = export.export(jax.jit(embed), platforms=PLATFORMS)(ids).serialize()
    except ImportError:  # of flatbuffers
        raise UserError("--format jax: flatbuffers is not installed; run: pip install 'elmo_jax[export]'") from None
    with writing(out), atomic_folder(out) as folder:
        (folder / PROGRAM).write_bytes(content)
        (folder / VERSION).write_text(f"{jax.__version__}\n", encoding="utf-8")
        (folder / CHARACTERS).write_text(inspect.getsource(characters), encoding="utf-8")
