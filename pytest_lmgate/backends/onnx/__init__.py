"""The engine onnxruntime: folders that optimum exports, read without optimum."""
