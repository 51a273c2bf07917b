"""What a gate's noise and limit mean for its chance to fail, and which damage it sees."""
