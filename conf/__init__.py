"""The settings of every command; an installed wheel carries this folder as ``grok.conf``."""
