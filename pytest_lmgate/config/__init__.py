"""What the user asked: lmgate.yaml and markers' arguments, decoded into frozen, validated specs; nothing is loaded."""

FILE_NAME = "lmgate.yaml"  # here, so that one may know it without importing YAML
WRONG_NAME = "lmgate.yml"  # which nobody reads, and of which somebody should say so
CACHE_NAME = ".lmgate_cache"  # folder of measurements, in rootdir
BASELINE_NAME = "lmgate-baseline.json"  # baseline of no_regression gates, in rootdir
