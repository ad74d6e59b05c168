/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * The beginning of every header of rdma-core-mummy, and the loader's two functions.
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
 * Returns 0, or ENOSYS if one of them cannot be used; rdma_mummy_error() returns the reason. After a
 * failure the next call tries again.
 */
int rdma_mummy_load(void) RDMA_MUMMY_SYMBOL(load);

/*
 * The reason of the calling thread's latest failure, if a library or one of its functions is missing;
 * NULL if the library was called, whatever it returned. The text is valid until the thread's next
 * call.
 */
const char *rdma_mummy_error(void) RDMA_MUMMY_SYMBOL(error);

/*
 * For the inline functions: the loaded library, or the device, does not have an operation. Sets errno
 * to EOPNOTSUPP and returns it; rdma_mummy_error() is NULL afterwards, because nothing is missing.
 */
int rdma_mummy_unsupported(void) RDMA_MUMMY_SYMBOL(unsupported);

RDMA_MUMMY_END

#endif
