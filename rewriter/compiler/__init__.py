"""Rules -> program: variants, questions, the decision tree and its emitted source, the edit scripts."""
