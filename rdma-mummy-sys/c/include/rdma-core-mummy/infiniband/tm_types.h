/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/* For programs written for rdma-core: the usual path, with the loader behind it. */
#include <rdma-mummy/tm_types.h>
