"""Generator of the English-French phrasebook that trifold ships (`embedded:phrasebook`)."""
