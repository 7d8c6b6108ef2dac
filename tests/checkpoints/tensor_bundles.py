"""Writes training checkpoints as bilm-tf does, without TensorFlow and without the code that reads them."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from elmo_jax.config import ModelConfig

DTYPES = {"float32": 1, "float64": 2, "int32": 3, "int64": 9, "float16": 19}
_CRCS = np.arange(256, dtype=np.uint32)
for _ in range(8):
    _CRCS = np.where(_CRCS & 1, (_CRCS >> 1) ^ np.uint32(0x82F63B78), _CRCS >> 1)
CRCS = _CRCS.tolist()


def masked_crc(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ CRCS[(crc ^ byte) & 255]
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value) if value else b""  # as in proto3, zeros are not written
    return varint(number << 3 | 2) + varint(len(value)) + value


def block(entries: Sequence[tuple[bytes, bytes]], restart_interval: int = 16) -> bytes:
    """A block with its trailer."""
    content, restarts, last = b"", [], b""
    for n, (key, value) in enumerate(entries):
        shared = 0
        if n % restart_interval == 0:
            restarts.append(len(content))
        else:
            shared = next((i for i, (a, b) in enumerate(zip(last, key, strict=False)) if a != b), len(last))
        content += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    restarts = restarts or [0]
    content += struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts)) + b"\0"
    return content + masked_crc(content)


def write_bundle(
    path: Path, arrays: Mapping[str, Any], shards: int = 1, per_block: int = 20, slices: Sequence[str] = ()
) -> None:
    """Writes `path.index` and `path.data-…`; the variables are dealt to the shards in turn."""
    data, entries = [b""] * shards, [(b"", field(1, shards) + field(3, field(1, 1)))]
    for n, name in enumerate(sorted(arrays, key=str.encode)):
        array = np.asarray(arrays[name])
        shard, content = n % shards, array.tobytes()
        shape = b"".join(field(2, field(1, size)) for size in array.shape)
        value = field(1, DTYPES[array.dtype.name]) + field(2, shape) + field(3, shard) + field(4, len(data[shard]))
        value += field(5, len(content)) + varint(6 << 3 | 5) + masked_crc(content)
        entries.append((name.encode(), value + (field(7, b"") if name in slices else b"")))
        data[shard] += content
    for shard, content in enumerate(data):
        Path(f"{path}.data-{shard:05d}-of-{shards:05d}").write_bytes(content)
    table, handles = b"", []
    for start in range(0, len(entries), per_block):
        part = entries[start : start + per_block]
        written = block(part)
        handles.append((part[-1][0], varint(len(table)) + varint(len(written) - 5)))
        table += written
    footer = b""
    for written in (block([]), block(handles, 1)):
        footer += varint(len(table)) + varint(len(written) - 5)
        table += written
    Path(f"{path}.index").write_bytes(table + footer.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57))


def variables(model: ModelConfig, words: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The variables of bilm-tf's graph: the key path of the parameter, and the shape that TensorFlow stores."""
    cnn, lstm = model.char_cnn, model.lstm
    actual: dict[str, tuple[str, tuple[int, ...]]] = {"lm/char_embed": ("char_embedding", (261, cnn.embedding_dim))}
    for i, (width, number) in enumerate(cnn.filters):
        actual[f"lm/CNN/W_cnn_{i}"] = (f"filter_{i}/kernel", (1, width, cnn.embedding_dim, number))
        actual[f"lm/CNN/b_cnn_{i}"] = (f"filter_{i}/bias", (number,))
    features, out = cnn.features, lstm.projection
    for i in range(cnn.highways):
        for gate in ("carry", "transform"):
            actual[f"lm/CNN_high_{i}/W_{gate}"] = (f"highway_{i}/{gate}/kernel", (features, features))
            actual[f"lm/CNN_high_{i}/b_{gate}"] = (f"highway_{i}/{gate}/bias", (features,))
    if features != out:
        actual["lm/CNN_proj/W_proj"] = ("projection/kernel", (features, out))
        actual["lm/CNN_proj/b_proj"] = ("projection/bias", (out,))
    actual = {name: (f"token_encoder/{path}", shape) for name, (path, shape) in actual.items()}
    for d, direction in enumerate(model.directions):
        scope = f"lm/RNN_{d}/rnn" if len(model.directions) == 2 else "lm/rnn"
        for j in range(lstm.layers):
            cell = f"{scope}/multi_rnn_cell/cell_{j}/lstm_cell" if lstm.layers > 1 else f"{scope}/lstm_cell"
            layer = f"{direction}/layer_{j}"
            actual[f"{cell}/kernel"] = (f"{layer}/kernel", (2 * out, 4 * lstm.cells))
            actual[f"{cell}/bias"] = (f"{layer}/bias", (4 * lstm.cells,))
            if lstm.cells != out:
                actual[f"{cell}/projection/kernel"] = (f"{layer}/projection", (lstm.cells, out))
    actual["lm/softmax/W"] = ("softmax/kernel", (words, out))
    actual["lm/softmax/b"] = ("softmax/bias", (words,))
    return actual


def options(model: ModelConfig, **more: Any) -> dict[str, Any]:
    cnn, lstm = model.char_cnn, model.lstm
    return {
        "bidirectional": len(model.directions) == 2,
        "char_cnn": {
            "activation": cnn.activation,
            "embedding": {"dim": cnn.embedding_dim},
            "filters": cnn.filters,
            "n_highway": cnn.highways,
            "max_characters_per_token": cnn.max_characters,
            "n_characters": 261,
        },
        "lstm": {
            "dim": lstm.cells,
            "projection_dim": lstm.projection,
            "n_layers": lstm.layers,
            "cell_clip": lstm.cell_clip or None,
            "proj_clip": lstm.projection_clip or None,
            "use_skip_connections": lstm.skip_connections,
        },
        "dropout": model.dropout,
        "all_clip_norm_val": 10.0,
        "batch_size": 4,
        "unroll_steps": 5,
        "n_negative_samples_batch": 8,
    } | more


def write_checkpoint(
    folder: Path, model: ModelConfig, words: Sequence[str], step: int = 120, adagrad: bool = True, **how: Any
) -> dict[str, np.ndarray]:
    """Writes a checkpoint of random numbers and its `options.json`, and returns the variables."""
    random, arrays = np.random.default_rng(0), {"global_step": np.float32(step), "train_perplexity": np.float32(9)}
    for name, (_, shape) in variables(model, len(words)).items():
        arrays[name] = 0.3 * random.standard_normal(shape, np.float32)
        if adagrad:
            arrays[f"{name}/Adagrad"] = 1 + random.random(shape, np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    write_bundle(folder / f"model.ckpt-{step}", arrays, **how)
    (folder / "options.json").write_text(json.dumps(options(model)))
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    (folder / "checkpoint").write_text(f'model_checkpoint_path: "/elsewhere/model.ckpt-{step}"\n')
    return arrays
