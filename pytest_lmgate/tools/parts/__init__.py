"""What several tools share, and nothing outside of tools uses: models in parts, and gates that a command names."""
