"""Helps to use TensorFlow Datasets (TFDS) without TensorFlow."""

import contextlib
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def quiet_tfds() -> Iterator[None]:
    """Keeps TFDS's warnings off the user's terminal; they concern TFDS's own folders."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
