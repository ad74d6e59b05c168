/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * librdmacm's sockets, loaded at run time.
 */
#ifndef RDMA_MUMMY_RSOCKET_H
#define RDMA_MUMMY_RSOCKET_H

#ifdef RSOCKET_H
#error "rdma-core's <rdma/rsocket.h> was included first: include <rdma-mummy/rsocket.h> in its place, or before it"
#endif
#define RSOCKET_H

#include "rdma_cma.h"

#include "abi/rsocket.h"

#endif
