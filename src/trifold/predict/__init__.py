"""Predictions of a trained model: classification, tagging, answers, embeddings, generation for many
texts.
"""
