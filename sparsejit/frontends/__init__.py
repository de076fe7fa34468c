"""Readers of users' weights and models: tensors, files, torch, ONNX and fitted estimators."""
