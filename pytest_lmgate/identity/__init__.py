"""What a model is, by content: the files a loader opens, code that comes with them, versions, and patched libraries."""
