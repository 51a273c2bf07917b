"""What the user asked: lmgate.yaml and markers' arguments, decoded into frozen, validated specs; nothing is loaded."""

FILE_NAME = "lmgate.yaml"  # here, so that one may know it without importing YAML
