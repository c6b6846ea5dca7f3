"""Policies that the one training loop drives."""
