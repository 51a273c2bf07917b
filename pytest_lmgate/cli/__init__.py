"""The command line ``lmgate``: one command a file, which `app` names. It judges through `judge`, as the plugin does."""
