"""The sections of settings that have one record for every run."""

from __future__ import annotations

from collections.abc import Mapping

from algorithm.config.cluster import ClusterConfig
from algorithm.config.population import PopulationConfig
from algorithm.config.replay import ReplayConfig
from algorithm.config.report import ReportConfig
from algorithm.config.schema import BaseConfig, Goal, Section
from algorithm.config.search import Tune
from algorithm.config.tracking import TrackerConfig

SECTIONS: Mapping[str, type[Section]] = {
    "base_config": BaseConfig,
    "cluster_config": ClusterConfig,
    "tracker_config": TrackerConfig,
    "replay_config": ReplayConfig,
    "goal": Goal,
    "tune": Tune,
    "population_config": PopulationConfig,
    "report_config": ReportConfig,
}
