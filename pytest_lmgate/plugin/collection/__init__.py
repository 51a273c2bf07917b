"""Which tests carry gates: markers, the gates of lmgate.yaml, and gates that would be missed by accident."""
