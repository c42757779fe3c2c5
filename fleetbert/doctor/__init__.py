"""`fleetbert doctor`: what a machine has, and whether training, compressing and serving run on it.

machine.py   looks at the machine and the installed packages, without Paddle
smoke.py     trains, compresses and answers for real, in a process of its own
card.py      answers with one engine on a GPU, in a process of its own
trial.py     runs these, two ranks, parameter servers and a server
"""
