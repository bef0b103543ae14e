"""What the commands share: composing settings, presets, output."""
