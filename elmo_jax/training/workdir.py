"""The folder of a run: `config.json` says what it is, and nothing of another run is ever written over."""

from __future__ import annotations

import json
from typing import Any

from etils import epath

from elmo_jax.config import CHANGEABLE, Config, differences, from_dict, to_dict
from elmo_jax.errors import UserError
from elmo_jax.files import in_bucket, write_text

# what `finetune` makes before the run itself begins; the second is the first, half-made
_BEFORE = ("corpus", ".corpus.partial", "original", ".original.partial", "softmax", "compilation_cache")


def open_workdir(workdir: epath.Path, config: Config, facts: dict[str, Any]) -> None:
    """Claims a folder for a run, or finds that it is this run's.

    Args:
      workdir: may be absent or empty.
      config: of this launch.
      facts: what else must stay the same, such as the fingerprint of the corpus.

    Raises:
      UserError: the folder holds something else, or a run with other settings; those that may change are `CHANGEABLE`;
        or it is in a bucket that cannot be read and written.
    """
    try:
        _claim(workdir, config, facts)
    except UserError:
        raise
    except Exception as error:  # the clients of the stores raise what they like
        if not in_bucket(workdir):
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UserError(
            f"{workdir}: cannot be read and written ({reason}); is there such a bucket, and may you write to it?"
        ) from error


def _claim(workdir: epath.Path, config: Config, facts: dict[str, Any]) -> None:
    path = workdir / "config.json"
    if path.exists():
        written = read_config_file(workdir)
        # settings that an older version did not have are as they were then, which is what their defaults say
        old = {**to_dict(from_dict(written["config"])), **written["facts"]}
        changed = differences(old, {**to_dict(config), **facts})
        refused = {key: values for key, values in changed.items() if key not in CHANGEABLE}
        if refused:
            listed = "; ".join(
                f"{key} was {_short(old)} and is now {_short(new)}" for key, (old, new) in refused.items()
            )
            raise UserError(
                f"{workdir}: this run was started with other settings: {listed}."
                " Go on with its own, or give the new run a folder of its own with --workdir"
            )
    else:
        check_vacant(workdir)
    workdir.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps({"config": to_dict(config), "facts": facts}, indent=2) + "\n")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def check_vacant(workdir: epath.Path) -> None:
    """Raises `UserError` where a folder without a run holds anything but what the start of a run leaves."""
    if not workdir.exists():
        return
    if not workdir.is_dir() or any(p.name not in _BEFORE and not p.name.endswith(".tmp") for p in workdir.iterdir()):
        raise UserError(f"{workdir}: holds something that is not a run (no config.json); choose another --workdir")


def read_config_file(workdir: epath.Path) -> dict[str, Any]:
    """`config.json` of a run: `config` and `facts`."""
    path = workdir / "config.json"
    try:
        written = json.loads(path.read_text())
        return {"config": written["config"], "facts": written["facts"]}
    except FileNotFoundError:
        raise UserError(f"{workdir}: no run here (no config.json)") from None
    except (json.JSONDecodeError, KeyError, TypeError):
        raise UserError(f"{path}: not the config.json of a run; restore the file, or start anew elsewhere") from None


def read_config(workdir: epath.Path) -> Config:
    """The config of a run."""
    config: Config = from_dict(read_config_file(workdir)["config"])
    return config
