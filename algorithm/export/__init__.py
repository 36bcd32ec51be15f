"""A trained agent as an ONNX file that Unity's Behavior Parameters take."""
