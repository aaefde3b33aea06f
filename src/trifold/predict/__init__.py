"""Predictions of a trained model: classification, tagging, answers, embeddings, generation for many
texts; and traces of its activations.

To be read in this order: `generate_texts`, `model_reader`; the tasks `classify`, `choose`, `tag`,
`answer`, `fill_mask`, `embed`; `predict`, which lists them; `trace_example`, `trace`.
"""
