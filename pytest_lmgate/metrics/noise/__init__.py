"""The noise of a number: of means over clusters and of shares, and the distributions that give its bounds."""
