"""Two agents of NIXL in two processes: one writes into the other's memory, which is compared."""

import multiprocessing
import sys
import time

import numpy
from nixl._api import nixl_agent, nixl_agent_config

SIZE = 4 << 20


def pattern():
    return (numpy.arange(SIZE, dtype=numpy.uint64) * 2654435761 >> 7).astype(numpy.uint8)


def agent(name):
    return nixl_agent(name, nixl_agent_config(backends=["UCX"]))


def target(pipe):
    own, memory = agent("target"), numpy.zeros(SIZE, dtype=numpy.uint8)
    own.register_memory([(memory.ctypes.data, SIZE, 0, "")], "DRAM")
    pipe.send((own.get_agent_metadata(), memory.ctypes.data))
    deadline = time.time() + 120
    while not own.get_new_notifs():
        if time.time() > deadline:
            sys.exit("no notification")
    pipe.send(bool((memory == pattern()).all()))
    pipe.recv()


def main():
    processes = multiprocessing.get_context("spawn")
    here, there = processes.Pipe()
    other = processes.Process(target=target, args=(there,))
    other.start()
    own, memory = agent("initiator"), pattern()
    own.register_memory([(memory.ctypes.data, SIZE, 0, "")], "DRAM")
    metadata, address = here.recv()
    name = own.add_remote_agent(metadata)
    local = own.get_xfer_descs([(memory.ctypes.data, SIZE, 0)], "DRAM")
    remote = own.get_xfer_descs([(address, SIZE, 0)], "DRAM")
    request = own.initialize_xfer("WRITE", local, remote, name, b"done")
    state = own.transfer(request)
    while state not in ("DONE", "ERR"):
        state = own.check_xfer_state(request)
    equal = here.recv()
    here.send(None)
    other.join()
    print(f"write: {state}, equal bytes: {equal}")


if __name__ == "__main__":
    main()
