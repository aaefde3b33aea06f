"""Linear models on features that are counted: n-grams of texts, TF-IDF, overlap of two texts.

texts -> terms (`ngrams`) -> weighted counts (`tfidf`) or features of pairs (`overlap`) -> weights
(`logistic`, `ridge`) -> logits. Everything is a function of the rows; nothing is random.
"""
