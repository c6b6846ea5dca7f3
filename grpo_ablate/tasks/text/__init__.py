"""Tasks in words: prompts as text or chat messages, responses scored as text."""
