"""Helps to use TensorFlow Datasets (TFDS) without TensorFlow."""

import contextlib
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def quiet_tfds() -> Iterator[None]:
    """Keeps the warnings of TFDS off the user's terminal; they concern TFDS's own folders, and retries of downloads."""
    loggers = [logging.getLogger(name) for name in ("absl", "urllib3")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
