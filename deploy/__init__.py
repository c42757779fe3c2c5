"""Servers for bundles. Installed as `fleetbert.deploy`; the link fleetbert/deploy leads here."""
