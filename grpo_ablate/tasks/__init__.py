"""Tasks: prompts, and the rewards that responses to them earn."""
