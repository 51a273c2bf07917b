"""The command line ``lmgate``: one command a file, in folders by subject; `app` names all commands.

It judges through `judge`, as the plugin does.
"""
