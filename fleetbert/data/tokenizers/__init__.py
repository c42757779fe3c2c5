"""How texts become token ids, a file for each kind."""
