"""The program in every node. Standard library only, plus cloudpickle carried along; ships as one .pyz.

__main__    which of the three programs below this process is
agent       one a node: joins the lead, or leads
forkserver  one a node: imports torch once, forks ranks
rank        one a rank: runs the user's work
"""
