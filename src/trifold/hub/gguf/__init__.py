"""Models in GGUF files, the format of llama.cpp.

To be read in this order: `blocks`, `file_format`, `metadata`, `architectures`, `tensors`,
`tokenizer`, `folder`; then `quantize`, `mixtures`, `file_writer`, `model_keys`, `tokenizer_keys`,
`modelfile` and `save`, which write files.
"""
