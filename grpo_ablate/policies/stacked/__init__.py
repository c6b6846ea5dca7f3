"""M Llama-shaped transformers side by side, as one batched program."""
