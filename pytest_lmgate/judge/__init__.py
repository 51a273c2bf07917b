"""From a gate to its verdict, and the baseline file. The plugin and the command line share it; it knows no pytest."""
