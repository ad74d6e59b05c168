"""Two engines of Mooncake in two processes: one writes into the other's memory, by RDMA."""

import multiprocessing

import numpy
from mooncake.engine import TransferEngine

SIZE = 4 << 20


def pattern():
    return (numpy.arange(SIZE, dtype=numpy.uint64) * 2654435761 >> 7).astype(numpy.uint8)


def engine():
    own = TransferEngine()
    assert own.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "soft0") == 0
    return own


def target(pipe):
    own, memory = engine(), numpy.zeros(SIZE, dtype=numpy.uint8)
    assert own.register_memory(memory.ctypes.data, SIZE) == 0
    pipe.send((own.get_rpc_port(), memory.ctypes.data))
    pipe.recv()
    pipe.send(bool((memory == pattern()).all()))
    pipe.recv()


def main():
    processes = multiprocessing.get_context("spawn")
    here, there = processes.Pipe()
    other = processes.Process(target=target, args=(there,))
    other.start()
    own, memory = engine(), pattern()
    assert own.register_memory(memory.ctypes.data, SIZE) == 0
    port, address = here.recv()
    result = own.transfer_sync_write(f"127.0.0.1:{port}", memory.ctypes.data, address, SIZE)
    here.send(None)
    print(f"write: {result}, equal bytes: {here.recv()}", flush=True)
    here.send(None)
    other.join(60)


if __name__ == "__main__":
    main()
