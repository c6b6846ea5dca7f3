"""A pretrained causal language model of transformers behind the protocol of the training loop."""
