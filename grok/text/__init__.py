"""Prepares raw text as files of token ids. No torch."""
