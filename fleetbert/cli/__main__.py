"""`python -m fleetbert.cli` is the command `fleetbert`."""

from fleetbert.cli.main import main

if __name__ == "__main__":
    main()
