/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/* rdma-core's path of this header, for programs that use the loader unchanged. */
#include <rdma-mummy/rdma_verbs.h>
