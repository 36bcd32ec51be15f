"""The parts that a run is built from: folders, environments, components, devices."""
