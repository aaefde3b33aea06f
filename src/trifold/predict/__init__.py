"""What a trained model is used for: classification, tagging, answers, embeddings, generation of many texts."""
