"""What a codec costs a language model: perplexity and divergence through a compressed cache."""
