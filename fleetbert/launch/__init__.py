"""`fleetbert launch`: the processes of a parameter-server job on this machine, started and watched.

Paddle's stock launcher starts nothing again, leaves ports and the shared folder to its user, and
keeps trainers waiting for 300 s when a server dies. Nothing here imports Paddle.
"""
