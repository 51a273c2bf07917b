"""How a verdict is put into words: numbers, rows of tables, and the explanation of a failure."""
