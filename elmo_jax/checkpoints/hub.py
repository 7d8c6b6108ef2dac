"""biLMs on the Hugging Face Hub, named `hf:USER/NAME` or `hf:USER/NAME@REVISION`, and files that a URL names.

A repository has the export as `bilm.safetensors`, and a model card. Downloads are kept in the Hub's own cache, where a
file appears once it is complete. `HF_ENDPOINT`, `HF_HOME` and `HF_TOKEN` have the meaning that the Hub gives them.

What `https://HOST/FILE` or `https://HOST/FILE#sha256=HEX` names is downloaded once per machine to `cache_folder`, where
it appears once it is complete and has the given SHA-256; delete it there to download it again.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import importlib
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmo_jax.environment import cache_folder
from elmo_jax.errors import UserError, reason_of
from elmo_jax.files import HUB, atomic_file, one_at_a_time, writing
from elmo_jax.runs.progress import Progress

if TYPE_CHECKING:
    from elmo_jax.checkpoints.export import PretrainedBiLM

_URL = re.compile(r"https?://[^/#\s]+/[^#\s]*?([^/#?\s]+)(?:\?[^#\s]*)?(?:#sha256=([0-9a-fA-F]{64}))?")
_SECONDS = 30  # without a byte
_PART = 1 << 20  # bytes


def is_url(source: str | os.PathLike[str]) -> bool:
    """Returns whether a source is named by a URL that can be downloaded."""
    return os.fspath(source).lower().startswith(("https://", "http://"))


def downloaded(url: str) -> Path:
    """Returns the file of a URL, downloaded unless it is in the cache."""
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
    except (http.client.InvalidURL, ValueError) as error:
        raise UserError(f"{url}: cannot be downloaded ({error}); check the URL") from None
    except (urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise UserError(f"{url}: cannot be downloaded ({reason or type(error).__name__}); try again") from None
    if length and read != int(length):
        raise UserError(f"{url}: has ended after {read:,} of {int(length):,} bytes; try again")
    if expected and digest.hexdigest() != expected:
        raise UserError(f"{url}: has the SHA-256 {digest.hexdigest()}, not the one that is given; do not use it")


NAME = "bilm.safetensors"
_NAMED = re.compile(rf"{HUB}([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")


def fetched(source: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Returns the file of what is named `hf:…` or by a URL, downloaded unless it is in the cache; a path as it is."""
    text = os.fspath(source)
    if is_url(text):
        return downloaded(text)
    if not text.startswith(HUB):
        return source
    repository, revision = _parsed(text)
    with _one_line(text) as hub:
        return Path(hub.hf_hub_download(repository, NAME, revision=revision))


def check_pushable(name: str) -> str:
    """Returns the repository USER/NAME of a name to write to; raises `UserError` for another one."""
    repository, revision = _parsed(name)
    if revision is not None:
        raise UserError(f"{name}: an upload makes a new revision; give hf:USER/NAME")
    with _one_line(name):
        importlib.import_module("huggingface_hub.utils").validate_repo_id(repository)
    return repository


def push(file: str | os.PathLike[str], name: str, bilm: PretrainedBiLM) -> None:
    """Uploads an export and its model card in one commit, to a repository that is made if it does not exist."""
    repository = check_pushable(name)
    with _one_line(name) as hub:
        api = hub.HfApi()
        api.create_repo(repository, exist_ok=True)
        added = [
            hub.CommitOperationAdd(NAME, os.fspath(file)),
            hub.CommitOperationAdd("README.md", model_card(bilm, name).encode()),
        ]
        api.create_commit(repository, added, commit_message="Upload a biLM of elmo_jax")


def model_card(bilm: PretrainedBiLM, name: str) -> str:
    """Returns the model card in Markdown: sizes, training, sources with their licences, perplexities, how to load."""
    info = bilm.info
    lines = ["---", "library_name: elmo_jax", "tags: [elmo, jax, flax, word-vectors]", "---", f"# {name[len(HUB) :]}"]
    lines += ["", "A bidirectional language model (ELMo), made with elmo_jax.", "", "```text", repr(bilm), "```"]
    lines += ["", "## Use", "", "```python", "import elmo_jax", "", f'bilm = elmo_jax.load_bilm("{name}")']
    lines += ['layers, mask, carry = bilm.embed([["My", "fellow", "citizens"]])', "```", "", "## Text", ""]
    sources = info.get("sources") or info.get("corpus_sources") or []
    for source in sources:
        known = source if isinstance(source, dict) else {"text": source}
        origin, licence = known.get("from", "an unnamed place"), known.get("licence", "not recorded")
        lines.append(f"- {known.get('text')}, from {origin}; licence: {licence}")
    lines += [] if sources else ["The sources of the text were not recorded."]
    lines += ["", "## Perplexity on held-out text", ""]
    perplexity = info.get("heldout_perplexity") or {}
    lines += [f"- {direction}: {value:,.1f}" for direction, value in perplexity.items()] or ["It was not recorded."]
    return "\n".join(lines) + "\n"


def _parsed(name: str) -> tuple[str, str | None]:
    match = _NAMED.fullmatch(name)
    if match is None:
        raise UserError(f"expected hf:USER/NAME or hf:USER/NAME@REVISION, got {name!r}")
    return match[1], match[2]


@contextlib.contextmanager
def _one_line(name: str) -> Iterator[Any]:
    try:
        hub: Any = importlib.import_module("huggingface_hub")
        errors: Any = importlib.import_module("huggingface_hub.errors")
    except ImportError:
        raise UserError(f"{name}: huggingface_hub is not installed; run: pip install 'elmo_jax[hub]'") from None
    access = "check the name, and set HF_TOKEN to a token that may use it"
    problems = {
        errors.LocalEntryNotFoundError: "the Hub cannot be reached, and the biLM is not in the cache; try again",
        errors.RevisionNotFoundError: "there is no such revision",
        errors.EntryNotFoundError: f"has no {NAME}; give a repository that elmo-jax export --push has written",
        errors.RepositoryNotFoundError: f"does not exist, or is private; {access}",
    }
    try:
        yield hub
    except (*problems, errors.HTTPError, OSError, ValueError) as error:  # a name that is not valid is a ValueError
        failed = f"the transfer has failed ({reason_of(error)}); try again, or {access}"
        problem = next((text for kind, text in problems.items() if isinstance(error, kind)), failed)
        raise UserError(f"{name}: {problem}") from error
