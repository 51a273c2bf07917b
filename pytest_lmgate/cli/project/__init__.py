"""Commands that look at a project before anything is measured."""
