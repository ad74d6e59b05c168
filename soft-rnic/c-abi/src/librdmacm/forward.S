/* librdmacm.so.1: each function jumps to that of our libibverbs.so.1, with the arguments in place. */

.macro forward name
    .p2align 4
    .globl \name
    .type \name, %function
\name:
#if defined(__x86_64__)
    endbr64
    jmp soft_rnic_\name@PLT
#elif defined(__aarch64__)
    hint #34 /* bti c */
    b soft_rnic_\name
#else
#error "the software device is for x86-64 and aarch64"
#endif
    .size \name, . - \name
.endm

    .text
#include "forwards.s"

    .section .note.GNU-stack, "", %progbits
