/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * What every header of rdma-core-mummy begins with, and the loader's own two functions.
 */
#ifndef RDMA_MUMMY_BASE_H
#define RDMA_MUMMY_BASE_H

#include <linux/types.h>
#include <stdbool.h>

#ifdef __cplusplus
#define RDMA_MUMMY_BEGIN extern "C" {
#define RDMA_MUMMY_END }
#else
#define RDMA_MUMMY_BEGIN
#define RDMA_MUMMY_END
#endif

/*
 * Gives a function its usual name for the compiler and a prefixed one for the linker. A label rather
 * than a `#define` of the name, so that a struct member, a method or a variable of the program that is
 * called like a function of rdma-core stays what it is.
 */
#define RDMA_MUMMY_SYMBOL(name) __asm__("rdma_mummy_" #name) __attribute__((visibility("hidden")))

RDMA_MUMMY_BEGIN

/*
 * Loads libibverbs and librdmacm now, rather than when the first function of each is called.
 * Returns 0, or ENOSYS where one of them cannot be used; rdma_mummy_error() says why. After a
 * failure the next call tries again.
 */
int rdma_mummy_load(void) RDMA_MUMMY_SYMBOL(load);

/*
 * Why the calling thread's latest call failed, if the reason is that a library or a function of it is
 * not there; NULL if the library did the work, whatever it answered. The text is valid until the
 * thread's next call.
 */
const char *rdma_mummy_error(void) RDMA_MUMMY_SYMBOL(error);

/*
 * For the inline functions: the loaded library, or the device, does not have an operation. Sets errno
 * to EOPNOTSUPP and returns it; rdma_mummy_error() is NULL afterwards, for nothing needs installing.
 */
int rdma_mummy_unsupported(void) RDMA_MUMMY_SYMBOL(unsupported);

RDMA_MUMMY_END

#endif
