"""The section `report_config`: what a run writes for people, besides its metrics."""

from __future__ import annotations

from typing import Annotated

from algorithm.annotations import Range
from algorithm.config.schema import Section


class ReportConfig(Section, title="report_config"):
    """The section `report_config`."""

    report: bool
    video_every: Annotated[int | None, Range(at_least=1)]
