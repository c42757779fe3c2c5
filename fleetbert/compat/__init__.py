"""What a version of Paddle needs: each workaround with its bug and version, in this one room."""
