"""The sections of settings that have one record for every run."""

from __future__ import annotations

from collections.abc import Mapping

from algorithm.config.cluster import ClusterConfig
from algorithm.config.population import PopulationConfig
from algorithm.config.report import ReportConfig
from algorithm.config.schema import BaseConfig, Goal, ReplayConfig, Section
from algorithm.config.search import Tune

SECTIONS: Mapping[str, type[Section]] = {
    "base_config": BaseConfig,
    "cluster_config": ClusterConfig,
    "replay_config": ReplayConfig,
    "goal": Goal,
    "tune": Tune,
    "population_config": PopulationConfig,
    "report_config": ReportConfig,
}
