/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * The headers on the wire of tag matching.
 */
#ifndef RDMA_MUMMY_TM_TYPES_H
#define RDMA_MUMMY_TM_TYPES_H

#ifdef _TM_TYPES_H
#error "rdma-core's <infiniband/tm_types.h> was included first: include <rdma-mummy/tm_types.h> in its place, or before it"
#endif
#define _TM_TYPES_H

#include "abi/tm_types.h"

#endif
