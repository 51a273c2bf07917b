"""What the user asked: lmgate.yaml, markers and options, decoded into frozen, validated records; nothing is loaded."""
