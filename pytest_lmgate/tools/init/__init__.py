"""``lmgate init``: the first gates of a project, and the file that runs them in CI."""
