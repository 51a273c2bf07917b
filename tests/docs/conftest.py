"""The pages' commands run in the projects of the end-to-end tests."""

from tests.end_to_end.conftest import measured, models, project, seed

__all__ = ["measured", "models", "project", "seed"]
