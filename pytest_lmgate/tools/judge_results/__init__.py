"""``lmgate judge``: the verdict of our gates on results that another tool measured."""
