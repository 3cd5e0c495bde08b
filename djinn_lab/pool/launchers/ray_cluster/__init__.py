"""Workers on several hosts, by Ray: it places one agent on each of its nodes, moves bytes between them and
says when one is lost. Each agent runs the local launcher for its node's devices, so that isolation, leases
and restarts of workers are those of one machine.

    ``cluster``        connects to Ray, or starts it; the nodes, and their devices
    ``examination``    what ``djinn-lab doctor`` finds on each node
    ``launcher``       implements :class:`djinn_lab.pool.devices.launcher.Launcher` over the agents
    ``host``           one node as the pool sees it: its agent, what it was sent, what it said
    ``agent``          runs on the node
    ``files``          tensors on their way between hosts, through the object store
    ``link``           how much came over a host's link, and how fast
    ``moves``          a parked session on its way from one host to another
    ``tasks``          work beside other work, and what is said where it fails
    ``second_copies``  which host keeps what another one parked
    ``held_copies``    reports of copies, until they are on two hosts

Only this package imports ``ray``, and only when a pool is started with ``--engine ray``."""
