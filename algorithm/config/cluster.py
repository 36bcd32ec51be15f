"""The section `cluster_config`: the actors and learners of runtime CLUSTER."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from algorithm.annotations import OnlyIf, Range, Unless
from algorithm.config.schema import MAX_SECONDS, Section

MAX_ACTORS = 2**14
MAX_IN_FLIGHT = 2**6
MAX_LEARNERS = 2**8
ON_RAY = OnlyIf(host="ray")


def check_address(text: Any) -> Any:
    """Return the address of a cluster. Raises ValueError if it is not one."""
    if not re.fullmatch(r"local|auto|[^\s:/]+:\d{1,5}", str(text)):
        raise ValueError("it must be local, auto, or HOST:PORT")
    return text


class ClusterConfig(Section, title="cluster_config"):
    """The section `cluster_config`."""

    host: Literal["processes", "ray"]
    address: Annotated[str, BeforeValidator(check_address), ON_RAY]
    actors: Annotated[int, Range(at_least=1, at_most=MAX_ACTORS)]
    cpus_per_actor: Annotated[float, Range(at_least=0), ON_RAY]
    gpus_per_actor: Annotated[float, Range(at_least=0), ON_RAY]
    rollouts_in_flight: Annotated[int | None, Range(at_least=1, at_most=MAX_IN_FLIGHT)]
    max_lag: Annotated[int | None, Range(at_least=0)]
    learners: Annotated[int, Range(at_least=1, at_most=MAX_LEARNERS)]
    cpus_per_learner: Annotated[float, Range(at_least=0), Unless(learners=1), ON_RAY]
    gpus_per_learner: Annotated[int, Range(at_least=0, at_most=1), Unless(learners=1), ON_RAY]
    timeout: Annotated[float, Range(above=0, at_most=MAX_SECONDS)]
    start_timeout: Annotated[float, Range(above=0, at_most=MAX_SECONDS)]
    evaluation_actor: bool
    evaluation_timeout: Annotated[float, Range(above=0, at_most=MAX_SECONDS), OnlyIf(evaluation_actor=True)]
    token_auth: Annotated[bool, ON_RAY]
