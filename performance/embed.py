"""Measures `elmo-jax embed`, from a file of sentences to a file of vectors, on one device and on all of this process.

The sentences are those of `infer`, and the biLM has random parameters. The file is embedded once before the
time is taken, so that nothing is compiled then; the words of the text are encoded again.
"""

from typing import Any

import jax

from elmo_jax.data.corpus import Corpus
from elmo_jax.embedding.embed_file import embed_file
from elmo_jax.files import temporary_folder
from performance.infer import heldout_sentences, random_bilm
from performance.machine import Machine
from performance.sizes import Size
from performance.train import operations


def measure(size: Size, corpus: Corpus, machine: Machine) -> dict[str, Any]:
    sentences = heldout_sentences(corpus)
    tokens = sum(map(len, sentences))
    devices = jax.local_devices()
    bilm = random_bilm(size, machine)
    with temporary_folder() as folder:
        text = folder / "sentences.txt"
        text.write_text("".join(" ".join(words) + "\n" for words in sentences), encoding="utf-8")

        def seconds_on(number: int) -> float:
            for name in ("warm_up", "timed"):
                model = bilm.on(devices[:number])  # with an empty cache of words
                out = folder / f"{name}_{number}.hdf5"
                seconds = machine.timed(lambda model=model, out=out: embed_file(model, text, out))  # type: ignore[misc]
            return seconds

        seconds_of_one = seconds_on(1)
        seconds = seconds_on(len(devices)) if len(devices) > 1 else seconds_of_one
    encoded = len({word for words in sentences for word in words})
    numbers = machine.numbers(tokens, seconds, operations(size, corpus, tokens, encoded))
    speeds = {"devices_used": len(devices), "tokens_per_second_of_one_device": tokens / seconds_of_one}
    return numbers | speeds | {"rows": 64}
