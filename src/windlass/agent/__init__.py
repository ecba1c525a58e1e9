"""The program in every node. Standard library only, plus cloudpickle carried along; ships as one .pyz.

A folder is a process, or what several of them share:

lead        node 0's agent only: decides, hears clients, writes the status
node        every agent: joins the lead, starts and ends ranks
forkserver  one per node: imports torch once, forks ranks
rank        one per rank: runs the user's work
link        how they reach each other
"""
