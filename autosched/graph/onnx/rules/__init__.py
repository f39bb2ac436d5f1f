"""Rules: ONNX operators as nodes of ours."""
