/* What the C library's own headers want of the compiler's <stdarg.h>. */
typedef __builtin_va_list va_list;
typedef __builtin_va_list __gnuc_va_list;
