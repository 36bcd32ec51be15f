"""The seeds of runs and of workers."""

from algorithm.parts.seeding import TRAINING, RunSeeds


def list_seeds(seeds: RunSeeds) -> list[int]:
    components = [int(child.generate_state(1)[0]) for child in seeds.make_component_seeds("agent").spawn(4)]
    return [seeds.process, seeds.get_seed(TRAINING, 0), seeds.get_seed(TRAINING, 1000), *components]


def test_the_first_worker_has_the_seeds_of_a_run_without_workers_and_others_have_different_ones():
    assert list_seeds(RunSeeds(5, (0, 0))) == list_seeds(RunSeeds(5))
    seeds = [seed for worker in [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1)] for seed in list_seeds(RunSeeds(5, worker))]
    assert len(set(seeds)) == len(seeds)
