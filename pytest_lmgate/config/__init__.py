"""What the user asked: lmgate.yaml and markers' arguments, decoded into frozen, validated specs; nothing is loaded."""
