"""Program that runs on every node. It ships as one .pyz that needs only Python and bundles cloudpickle.

Each folder holds the code of one kind of process, or code that several of them share:

lead        only in node 0's agent: decides, serves clients, writes the status
node        in every agent: joins the lead, starts and ends ranks
forkserver  one per node: imports torch once, forks ranks
rank        one per rank: runs the user's work
link        the connections between them
"""
