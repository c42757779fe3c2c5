"""Servers for bundles. setup.py installs it as `fleetbert.deploy`."""
