"""The command line ``lmgate``; `app` names all commands. It judges through `judge`, as the plugin does."""
