"""Types that many modules share."""

from typing import Any

Tree = dict[str, Any]  # nested dicts with arrays as leaves, such as a parameter tree
