"""What `import fleetbert` offers: functions, their arguments, their results, `Callback`."""
