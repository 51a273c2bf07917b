"""The engine llama.cpp, through llama-cpp-python: GGUF files, full logits from its own batches."""
