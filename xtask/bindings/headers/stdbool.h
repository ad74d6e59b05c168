/* What the C library's own headers want of the compiler's <stdbool.h>. */
#define bool _Bool
#define true 1
#define false 0
