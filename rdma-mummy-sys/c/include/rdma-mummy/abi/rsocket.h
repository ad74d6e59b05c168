/* By `cargo xtask bindings` of rdma-core 65.0-1.1, bindgen 0.73.2, libclang 18.1.1. Do not edit. */

#ifndef RDMA_MUMMY_ABI_RSOCKET_H
#define RDMA_MUMMY_ABI_RSOCKET_H

#include <poll.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include "../base.h"

RDMA_MUMMY_BEGIN

#define SOL_RDMA 65536

int rsocket(int domain, int type, int protocol) RDMA_MUMMY_SYMBOL(rsocket);

int rbind(int socket, const struct sockaddr *addr, socklen_t addrlen) RDMA_MUMMY_SYMBOL(rbind);

int rlisten(int socket, int backlog) RDMA_MUMMY_SYMBOL(rlisten);

int raccept(int socket, struct sockaddr *addr, socklen_t *addrlen) RDMA_MUMMY_SYMBOL(raccept);

int rconnect(int socket, const struct sockaddr *addr, socklen_t addrlen) RDMA_MUMMY_SYMBOL(rconnect);

int rshutdown(int socket, int how) RDMA_MUMMY_SYMBOL(rshutdown);

int rclose(int socket) RDMA_MUMMY_SYMBOL(rclose);

ssize_t rrecv(int socket, void *buf, size_t len, int flags) RDMA_MUMMY_SYMBOL(rrecv);

ssize_t rrecvfrom(int socket, void *buf, size_t len, int flags, struct sockaddr *src_addr, socklen_t *addrlen) RDMA_MUMMY_SYMBOL(rrecvfrom);

ssize_t rrecvmsg(int socket, struct msghdr *msg, int flags) RDMA_MUMMY_SYMBOL(rrecvmsg);

ssize_t rsend(int socket, const void *buf, size_t len, int flags) RDMA_MUMMY_SYMBOL(rsend);

ssize_t rsendto(int socket, const void *buf, size_t len, int flags, const struct sockaddr *dest_addr, socklen_t addrlen) RDMA_MUMMY_SYMBOL(rsendto);

ssize_t rsendmsg(int socket, const struct msghdr *msg, int flags) RDMA_MUMMY_SYMBOL(rsendmsg);

ssize_t rread(int socket, void *buf, size_t count) RDMA_MUMMY_SYMBOL(rread);

ssize_t rreadv(int socket, const struct iovec *iov, int iovcnt) RDMA_MUMMY_SYMBOL(rreadv);

ssize_t rwrite(int socket, const void *buf, size_t count) RDMA_MUMMY_SYMBOL(rwrite);

ssize_t rwritev(int socket, const struct iovec *iov, int iovcnt) RDMA_MUMMY_SYMBOL(rwritev);

int rpoll(struct pollfd *fds, nfds_t nfds, int timeout) RDMA_MUMMY_SYMBOL(rpoll);

int rselect(int nfds, fd_set *readfds, fd_set *writefds, fd_set *exceptfds, struct timeval *timeout) RDMA_MUMMY_SYMBOL(rselect);

int rgetpeername(int socket, struct sockaddr *addr, socklen_t *addrlen) RDMA_MUMMY_SYMBOL(rgetpeername);

int rgetsockname(int socket, struct sockaddr *addr, socklen_t *addrlen) RDMA_MUMMY_SYMBOL(rgetsockname);

enum {
	RDMA_SQSIZE = 0,
	RDMA_RQSIZE = 1,
	RDMA_INLINE = 2,
	RDMA_IOMAPSIZE = 3,
	RDMA_ROUTE = 4,
};

int rsetsockopt(int socket, int level, int optname, const void *optval, socklen_t optlen) RDMA_MUMMY_SYMBOL(rsetsockopt);

int rgetsockopt(int socket, int level, int optname, void *optval, socklen_t *optlen) RDMA_MUMMY_SYMBOL(rgetsockopt);

int rfcntl(int socket, int cmd, ...) RDMA_MUMMY_SYMBOL(rfcntl);

off_t riomap(int socket, void *buf, size_t len, int prot, int flags, off_t offset) RDMA_MUMMY_SYMBOL(riomap);

int riounmap(int socket, void *buf, size_t len) RDMA_MUMMY_SYMBOL(riounmap);

size_t riowrite(int socket, const void *buf, size_t count, off_t offset, int flags) RDMA_MUMMY_SYMBOL(riowrite);

int repoll_create(int flags) RDMA_MUMMY_SYMBOL(repoll_create);

int repoll_ctl(int epfd, int op, int fd, struct epoll_event *event) RDMA_MUMMY_SYMBOL(repoll_ctl);

int repoll_wait(int epfd, struct epoll_event *events, int maxevents, int timeout) RDMA_MUMMY_SYMBOL(repoll_wait);

RDMA_MUMMY_END

#endif
