"""The `fleetbert` command, one file a subcommand."""
