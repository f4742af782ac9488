"""Experiments: engines, comparing strategies, reports and the `muster` command."""
