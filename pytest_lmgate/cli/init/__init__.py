"""``lmgate init``: from a folder with a model and a text to gates that run. Found, measured, proposed, written."""
