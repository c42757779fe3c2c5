"""`fleetbert doctor`: what a machine has, and whether training, compressing and serving run on it.

machine.py   looks at the machine and the installed packages, without Paddle
smoke.py     trains, compresses and answers for real, in a process of its own
command.py   runs both, two ranks and a server, and prints the table
"""
