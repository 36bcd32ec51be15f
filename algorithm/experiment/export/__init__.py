"""A trained policy as an ONNX file that Unity accepts."""
