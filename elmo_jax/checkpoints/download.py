"""Downloads what is named by a URL, `https://HOST/FILE` or `https://HOST/FILE#sha256=HEX`, once per machine.

The file is kept in `~/.cache/elmo_jax` (or `$XDG_CACHE_HOME/elmo_jax`) under its own name, where it appears once it is
complete and has the given SHA-256. A URL is not asked again, so delete the file there to download it again.
"""

import hashlib
import http.client
import os
import re
import urllib.error
import urllib.request
from pathlib import Path

from elmo_jax.environment import cache_folder
from elmo_jax.errors import UserError
from elmo_jax.files import atomic_file, one_at_a_time, writing
from elmo_jax.runs.progress import Progress

_URL = re.compile(r"https?://[^/#\s]+/[^#\s]*?([^/#?\s]+)(?:\?[^#\s]*)?(?:#sha256=([0-9a-fA-F]{64}))?")
_SECONDS = 30  # without a byte
_PART = 1 << 20  # bytes


def is_url(source: str | os.PathLike[str]) -> bool:
    """Returns whether a source is named by a URL that can be downloaded."""
    return os.fspath(source).lower().startswith(("https://", "http://"))


def downloaded(url: str) -> Path:
    """Returns the file of a URL, downloaded unless it is in the cache.

    Raises:
      UserError: the URL is not of the form above, the server cannot be reached or has no such file, the file ends
        early, does not have the given SHA-256, or cannot be written.
    """
    parsed = _URL.fullmatch(url)
    if parsed is None:
        raise UserError(f"expected https://HOST/FILE or https://HOST/FILE#sha256=HEX, got {url!r}")
    file = cache_folder() / hashlib.sha256(url.encode()).hexdigest()[:16] / parsed[1]
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with one_at_a_time(file.parent / ".lock"):
            if not file.exists():
                with atomic_file(file) as partial:
                    _download(url, partial, (parsed[2] or "").lower())
    return file


def _download(url: str, out: Path, expected: str) -> None:
    digest, read = hashlib.sha256(), 0
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as response, out.open("wb") as file:
            length = response.headers.get("Content-Length")
            with Progress(f"downloading {out.name[1:].rsplit('.', 2)[0]}", "bytes", int(length or 0)) as progress:
                while part := response.read1(_PART):
                    file.write(part)
                    digest.update(part)
                    read += len(part)
                    progress.add(len(part))
    except urllib.error.HTTPError as error:
        raise UserError(f"{url}: the server has answered with status {error.code}; check the URL") from None
    except (urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise UserError(f"{url}: cannot be downloaded ({reason or type(error).__name__}); try again") from None
    if length and read != int(length):
        raise UserError(f"{url}: has ended after {read:,} of {int(length):,} bytes; try again")
    if expected and digest.hexdigest() != expected:
        raise UserError(f"{url}: has the SHA-256 {digest.hexdigest()}, not the one that is given; do not use it")
