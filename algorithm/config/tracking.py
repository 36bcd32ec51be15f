"""The section `tracker_config`: where the tracker of a run shows it."""

from __future__ import annotations

from typing import Annotated, Literal

from algorithm.annotations import OnlyIf
from algorithm.config.schema import Section


class TrackerConfig(Section, title="tracker_config"):
    """The section `tracker_config`."""

    project: str
    group: str | None
    mode: Literal["offline", "online"]
    address: Annotated[str | None, OnlyIf(mode="online")]
