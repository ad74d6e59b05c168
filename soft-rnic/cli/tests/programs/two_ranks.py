"""A program of two ranks, which checks the bytes that they exchange.

It calls the MPI library by its C interface, so that one file serves OpenMPI and MPICH. The argument
names which: openmpi or mpich.
"""

import ctypes
import sys

SIZES = [1, 100, 4096, 65536, 1 << 20, 5 << 20]


def handles(kind):
    """The library, MPI_COMM_WORLD, MPI_BYTE and MPI_STATUS_IGNORE."""
    if kind == "openmpi":
        lib = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
        place = lambda name: ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(lib, name)))
        return lib, place("ompi_mpi_comm_world"), place("ompi_mpi_byte"), None
    lib = ctypes.CDLL("libmpich.so.12", mode=ctypes.RTLD_GLOBAL)
    return lib, ctypes.c_int(0x44000000), ctypes.c_int(0x4C00010D), ctypes.c_void_p(1)


def main():
    lib, world, byte, no_status = handles(sys.argv[1])
    assert lib.MPI_Init(None, None) == 0
    rank = ctypes.c_int()
    lib.MPI_Comm_rank(world, ctypes.byref(rank))
    for size in SIZES:
        sent = bytes((i * 40503 + size >> 5) & 255 for i in range(size))
        room = ctypes.create_string_buffer(size)
        if rank.value == 0:
            assert lib.MPI_Send(sent, size, byte, 1, 7, world) == 0
            assert lib.MPI_Recv(room, size, byte, 1, 8, world, no_status) == 0
        else:
            assert lib.MPI_Recv(room, size, byte, 0, 7, world, no_status) == 0
            assert lib.MPI_Send(room, size, byte, 0, 8, world) == 0
        assert room.raw == sent, f"rank {rank.value}: other bytes, of {size}"
    lib.MPI_Finalize()
    print(f"rank {rank.value}: equal bytes of {len(SIZES)} sizes", flush=True)


main()
