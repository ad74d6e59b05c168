/* Everything that the bindings cover. */
#include <infiniband/verbs.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/efadv.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>
