"""Another trainer beside this one: the same row, start, prompts and budget, trained by both."""
