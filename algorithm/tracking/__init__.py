"""Trackers of runs: TensorBoard, and the services Weights & Biases, MLflow and Trackio."""
