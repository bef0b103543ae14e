"""From raw text to token files. No torch."""
