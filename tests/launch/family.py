"""A server with a family: a child, a grandchild in a session of its own whose parent has ended, as Ray's are."""

FAMILY = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        os.write(1, b"stray %d\\n" % os.getpid())
        time.sleep(300)
    os._exit(0)
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(1, b"child %d\\n" % os.getpid())
    time.sleep(300)
os.write(1, b"main %d\\n" % os.getpid())
{then}
"""
