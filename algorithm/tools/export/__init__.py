"""Export of trained agents as ONNX files for Unity's Behavior Parameters."""
