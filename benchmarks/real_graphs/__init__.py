"""Graphs of public packages through the front doors of a local stack, compared with ONNX Runtime alone."""
