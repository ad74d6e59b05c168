//! The raw ABI of libibverbs, librdmacm and mlx5dv, loaded with dlopen at run time.
