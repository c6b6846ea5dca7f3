"""Analysis: from run records to tidy tables, summaries, figures and the paper."""
