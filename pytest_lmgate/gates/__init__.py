"""Pure: a score and a limit make a verdict, once."""
