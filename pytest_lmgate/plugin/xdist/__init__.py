"""What passes between the controller of xdist and its workers."""
