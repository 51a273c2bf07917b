"""What is measured, a class for each kind of statistics, and the measuring of it: lookup, the one loop, Ray."""
