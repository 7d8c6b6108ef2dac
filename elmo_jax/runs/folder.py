"""Opens the folder of a run, whose `config.json` identifies the run; files of another run are never overwritten."""

import contextlib
import importlib.metadata
import os
import sys
import time
from collections.abc import Collection
from typing import Any

from etils import epath

from elmo_jax.config import Config
from elmo_jax.distributed.collectives import is_primary, raise_on_all
from elmo_jax.errors import UserError
from elmo_jax.files import HUB, absolute, parse_path, read_checksummed_json, write_checksummed_json
from elmo_jax.runs.lock import locked, store_errors
from elmo_jax.settings import differences, from_dict, to_dict

RECORDED = ("elmo_jax", "jax", "jaxlib", "flax", "orbax-checkpoint", "grain")  # the packages whose versions matter
PATIENCE_SECONDS = 30.0  # how long a host waits to see what another host has written

# What `finetune` makes before the run itself begins; what is hidden is unfinished or a lock.
_BEFORE = ("corpus", "original", "softmax")
_PATHS = ("corpus", "train", "dev", "test", "cache", "path", "bilm", "bilm_options")  # the settings that are paths


def open_workdir(
    workdir: epath.Path,
    config: Any,
    metadata: dict[str, Any],
    changeable: Collection[str],
    packages: Collection[str] = (),
) -> None:
    """Claims a folder, which may be absent or empty, for a run, or verifies that it belongs to this run.

    The settings with the dotted keys `changeable` may differ between two launches, and the `metadata`, such as the
    fingerprint of the corpus, may not. The versions of the `packages` whose code the run imports are recorded.
    """
    with raise_on_all(), store_errors(workdir):
        if is_primary():
            versions = {name: importlib.metadata.version(name) for name in (*RECORDED, *packages)}
            _check_claim(workdir, config, metadata, changeable, versions)
            workdir.mkdir(parents=True, exist_ok=True)
            written = {"config": to_dict(config), "metadata": metadata, "folder": os.getcwd(), "versions": versions}
            write_checksummed_json(workdir / "config.json", written, covered_by_seal)
    with raise_on_all(), store_errors(workdir):
        if not is_primary():
            _follow(workdir, config, metadata)


def _check_claim(
    workdir: epath.Path, config: Any, metadata: dict[str, Any], changeable: Collection[str], versions: dict[str, str]
) -> None:
    if not (workdir / "config.json").exists():
        return check_usable(workdir)
    changed, before = _changed(workdir, config, metadata), read_config_file(workdir).get("versions", versions)
    if refused := {key: values for key, values in changed.items() if key not in changeable}:
        remedy = "Resume it with its own settings, or give the new run another folder with --workdir"
        raise UserError(f"{workdir}: this run was started with other settings: {_listed(refused)}. {remedy}")
    if other := [f"{name} {before.get(name)} → {new}" for name, new in versions.items() if before.get(name) != new]:
        line = f"other versions than in the launch before ({', '.join(other)}); resuming is not bit-exact"
        print(f"elmo-jax: warning: {workdir}: {line}", file=sys.stderr, flush=True)


def check_usable(workdir: epath.Path) -> None:
    """Raises `UserError` if a folder holds no run and anything else than what the start of a run leaves."""
    if not workdir.exists() or (workdir / "config.json").exists():
        return
    if not workdir.is_dir() or any(p.name not in _BEFORE and p.name[0] != "." for p in workdir.iterdir()):
        raise UserError(f"{workdir}: holds something that is not a run (no config.json); choose another --workdir")


def locked_for(out: epath.Path) -> contextlib.AbstractContextManager[None]:
    """Returns the lock of the run that a file is in, at most one folder down; an empty context if it is in none."""
    above = absolute(out).parents
    run = next((folder for folder in above[:2] if (folder / "config.json").is_file()), None)
    return contextlib.nullcontext() if run is None else locked(run)


def _follow(workdir: epath.Path, config: Any, metadata: dict[str, Any]) -> None:
    """Waits until this host sees the run that process 0 opened, which takes a while in some shared file systems."""
    deadline, changed = time.monotonic() + PATIENCE_SECONDS, None
    while True:
        if (workdir / "config.json").exists():
            changed = _changed(workdir, config, metadata)
            changed.pop("data.corpus", None)  # each host may have its own copy of the corpus
            if not changed:
                return
        if time.monotonic() > deadline:
            break
        time.sleep(0.5)
    problem = "process 0 has opened the run there, but this host does not see it; every host needs the same --workdir,"
    problem += " in a shared folder or a bucket"
    if changed:
        settings = f"not the settings that process 0 was started with: {_listed(changed)}"
        problem = f"{settings}; start the same command on every host"
    raise UserError(f"{workdir}: {problem}")


def _changed(workdir: epath.Path, config: Any, metadata: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Returns the settings and metadata that differ from those that the run was opened with, as key -> (old, new)."""
    written = read_config_file(workdir)
    # A setting that the version which wrote the file did not have has its default there.
    changed = differences(to_dict(from_dict(written["config"], type(config))), to_dict(config))
    of_metadata = differences(written["metadata"], metadata)
    assert not changed.keys() & of_metadata.keys()  # otherwise a fact would hide a setting, or the other way round
    return changed | of_metadata


def _listed(changed: dict[str, tuple[Any, Any]]) -> str:
    return "; ".join(f"{key} was {_short(old)} and is now {_short(new)}" for key, (old, new) in changed.items())


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def read_config_file(workdir: epath.Path) -> dict[str, Any]:
    """Reads `config.json` of a run: `config`, `metadata`, and the `folder` in which the command was run."""
    remedy = "restore it, or start the run again in another --workdir"
    try:
        return read_checksummed_json(workdir / "config.json", remedy, covered_by_seal)
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{workdir}: no run here (no config.json)") from None


def packages_in(written: dict[str, Any]) -> list[str]:
    """Returns the packages of a user whose code a run imports, such as `my-tasks==1.0`, by its `config.json`."""
    return [f"{name}=={version}" for name, version in written.get("versions", {}).items() if name not in RECORDED]


def from_launch(workdir: epath.Path, path: str) -> str:
    """Returns a path of a run's settings as one for the current folder; it was given in that of the launch."""
    if not path or path.startswith((HUB, "https://", "http://")):
        return path
    there = os.path.join(read_config_file(workdir)["folder"], parse_path(path))
    return there if os.path.exists(there) else path


def covered_by_seal(value: dict[str, Any]) -> dict[str, Any]:
    """Returns what the seal covers: no paths, since a user may have to correct them by hand."""

    def without_paths(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {k: without_paths(v) for k, v in value.items() if k not in _PATHS or not isinstance(v, str)}

    return {"config": without_paths(value["config"]), "metadata": value["metadata"]}


def read_config(workdir: epath.Path) -> tuple[Config, dict[str, Any]]:
    """Reads the settings and the metadata of a run, as `read_config_file`; raises `UserError` for that of a task."""
    written = read_config_file(workdir)
    if "task" in written["config"]:
        raise UserError(f"{workdir}: the run of a task, not of a biLM; config.bilm in its config.json names its biLM")
    return from_dict(written["config"], Config), written["metadata"]
