"""What each operator of ONNX becomes, one file a group."""
