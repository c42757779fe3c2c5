"""What operators look at: logs, metrics, traces, pages."""
