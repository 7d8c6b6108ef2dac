"""TensorFlow Datasets, used without TensorFlow."""

import contextlib
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def quiet_tfds() -> Iterator[None]:
    """Keeps TFDS's warnings, which are about its own folders, from the user's terminal."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
