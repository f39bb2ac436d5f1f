"""Import rules: ONNX operators as nodes of our operators."""
