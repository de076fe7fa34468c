"""Mappings of ONNX's operators, one file a group."""
