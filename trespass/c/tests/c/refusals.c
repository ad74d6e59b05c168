/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "suite.h"

/* NULL in the place of each handle, and of each place for a result. */
void null_arguments(void)
{
	struct pair pair = connect_pair(TRESPASS_STREAM, NULL);
	struct pair packets = connect_pair(TRESPASS_SEQPACKET, NULL);
	trespass_worker *worker = trespass_worker_new(NULL);
	trespass_connection *out;
	trespass_part part;
	trespass_progress progress;
	trespass_completion completion;
	trespass_event event;
	trespass_key key;
	struct sockaddr_storage address;
	struct sockaddr *place = (struct sockaddr *)&address;
	socklen_t length = sizeof(address);
	size_t size;
	char in[4];

	CHECK(worker);
	REFUSED_NULL(trespass_connect(NULL, TRESPASS_STREAM, NULL), EFAULT);
	REFUSED_NULL(trespass_connect_start(NULL, TRESPASS_STREAM, NULL), EFAULT);
	REFUSED(trespass_connect_fd(NULL), EFAULT);
	REFUSED_NULL(trespass_connect_finish(NULL), EFAULT);
	REFUSED(trespass_connect_close(NULL), EFAULT);
	REFUSED_NULL(trespass_listen(NULL, NULL), EFAULT);
	REFUSED_NULL(trespass_accept(NULL, TRESPASS_STREAM), EFAULT);
	REFUSED(trespass_listener_set_nonblocking(NULL, 1), EFAULT);
	REFUSED(trespass_listener_set_timeout(NULL, 1), EFAULT);
	REFUSED(trespass_listener_fd(NULL), EFAULT);
	REFUSED(trespass_listener_port(NULL), EFAULT);
	REFUSED(trespass_listener_addr(NULL, place, &length), EFAULT);
	REFUSED(trespass_listener_close(NULL), EFAULT);

	REFUSED(trespass_read(NULL, in, 4), EFAULT);
	REFUSED(trespass_read(pair.client, NULL, 4), EFAULT);
	CHECK(!strcmp(trespass_error(), "`buffer` is NULL"));
	REFUSED(trespass_read(pair.client, in, (size_t)-1), EINVAL);
	REFUSED(trespass_readv(NULL, NULL, 0), EFAULT);
	REFUSED(trespass_readv(pair.client, NULL, 1), EFAULT);
	REFUSED(trespass_readv(pair.client, &(struct iovec){ NULL, 1 }, 1), EFAULT);
	REFUSED(trespass_readv(pair.client, NULL, -1), EINVAL);
	REFUSED(trespass_readv(pair.client, NULL, 1025), EINVAL);
	REFUSED(trespass_peek(NULL, in, 4), EFAULT);
	REFUSED(trespass_write(NULL, in, 4), EFAULT);
	REFUSED(trespass_write(pair.client, NULL, 4), EFAULT);
	REFUSED(trespass_writev(NULL, NULL, 0), EFAULT);
	REFUSED(trespass_writev(pair.client, &(struct iovec){ NULL, 1 }, 1), EFAULT);
	REFUSED(trespass_flush(NULL), EFAULT);

	REFUSED(trespass_send(NULL, in, 4), EFAULT);
	REFUSED(trespass_send(packets.client, NULL, 4), EFAULT);
	REFUSED(trespass_sendv(NULL, NULL, 0), EFAULT);
	REFUSED(trespass_sendv(packets.client, NULL, 2), EFAULT);
	REFUSED(trespass_recv(NULL, in, 4), EFAULT);
	REFUSED(trespass_recv(packets.client, NULL, 4), EFAULT);
	REFUSED(trespass_send_part(NULL, 4, in, 4), EFAULT);
	REFUSED(trespass_send_part(packets.client, 4, NULL, 4), EFAULT);
	REFUSED(trespass_recv_part(NULL, in, 4, &part), EFAULT);
	REFUSED(trespass_recv_part(packets.client, in, 4, NULL), EFAULT);
	REFUSED(trespass_sending(NULL, &progress), EFAULT);
	REFUSED(trespass_sending(packets.client, NULL), EFAULT);
	REFUSED(trespass_receiving(NULL, &progress), EFAULT);

	REFUSED(trespass_set_nonblocking(NULL, 1), EFAULT);
	REFUSED(trespass_set_read_timeout(NULL, 1), EFAULT);
	REFUSED(trespass_set_write_timeout(NULL, 1), EFAULT);
	REFUSED(trespass_set_linger(NULL, 1), EFAULT);
	REFUSED(trespass_set_cork(NULL, 1), EFAULT);
	REFUSED(trespass_shutdown(NULL, SHUT_WR), EFAULT);
	REFUSED(trespass_drain(NULL, 1), EFAULT);
	REFUSED(trespass_close(NULL), EFAULT);
	REFUSED(trespass_split(NULL, &out, &out), EFAULT);
	REFUSED(trespass_split(pair.client, NULL, &out), EFAULT);
	REFUSED(trespass_split(pair.client, &out, NULL), EFAULT);
	REFUSED(trespass_fd(NULL), EFAULT);
	REFUSED(trespass_writable_fd(NULL), EFAULT);
	REFUSED(trespass_readiness(NULL), EFAULT);
	REFUSED(trespass_set_interest(NULL, 1), EFAULT);
	REFUSED(trespass_take_error(NULL), EFAULT);
	REFUSED(trespass_local_addr(NULL, place, &length), EFAULT);
	REFUSED(trespass_local_addr(pair.client, NULL, &length), EFAULT);
	REFUSED(trespass_peer_addr(NULL, place, &length), EFAULT);
	REFUSED(trespass_peer_addr(pair.client, place, NULL), EFAULT);
	REFUSED_NULL(trespass_transport(NULL), EFAULT);
	REFUSED_NULL(trespass_fallback_reason(NULL), EFAULT);
	REFUSED_NULL(trespass_device(NULL), EFAULT);
	REFUSED_NULL(trespass_peer_user_data(NULL, &size), EFAULT);
	REFUSED_NULL(trespass_peer_user_data(pair.client, NULL), EFAULT);

	REFUSED_NULL(trespass_buffer_new(NULL, 1), EFAULT);
	REFUSED_NULL(trespass_buffer_data(NULL), EFAULT);
	REFUSED(trespass_buffer_length(NULL), EFAULT);
	REFUSED(trespass_buffer_release(NULL), EFAULT);
	REFUSED(trespass_send_buffer(NULL, NULL, 1, NULL), EFAULT);
	REFUSED(trespass_send_buffer(pair.client, NULL, 1, NULL), EFAULT);
	REFUSED(trespass_completion_poll(NULL, &completion), EFAULT);
	REFUSED(trespass_completion_poll(pair.client, NULL), EFAULT);
	REFUSED(trespass_completion_wait(NULL, &completion), EFAULT);
	REFUSED_NULL(trespass_recv_buffer(NULL), EFAULT);
	REFUSED_NULL(trespass_recv_part_buffer(NULL, &part), EFAULT);
	REFUSED_NULL(trespass_recv_part_buffer(packets.client, NULL), EFAULT);
	REFUSED(trespass_received_length(NULL), EFAULT);
	REFUSED_NULL(trespass_received_piece(NULL, 0, &size), EFAULT);
	REFUSED(trespass_received_release(NULL), EFAULT);

	REFUSED(trespass_worker_close(NULL), EFAULT);
	REFUSED(trespass_worker_listen(NULL, "127.0.0.1:0", TRESPASS_STREAM, &key), EFAULT);
	REFUSED(trespass_worker_listen(worker, NULL, TRESPASS_STREAM, &key), EFAULT);
	REFUSED(trespass_worker_listen(worker, "127.0.0.1:0", TRESPASS_STREAM, NULL), EFAULT);
	REFUSED(trespass_worker_connect(NULL, "127.0.0.1:1", TRESPASS_STREAM, &key), EFAULT);
	REFUSED(trespass_worker_add(NULL, pair.client, &key), EFAULT);
	REFUSED(trespass_worker_add(worker, NULL, &key), EFAULT);
	REFUSED(trespass_worker_poll(NULL, &event, 1, 0), EFAULT);
	REFUSED(trespass_worker_poll(worker, NULL, 1, 0), EFAULT);
	REFUSED(trespass_worker_poll(worker, &event, 0, 0), EINVAL);
	REFUSED(trespass_worker_fd(NULL), EFAULT);
	REFUSED_NULL(trespass_worker_waker(NULL), EFAULT);
	REFUSED(trespass_waker_wake(NULL), EFAULT);
	REFUSED(trespass_waker_release(NULL), EFAULT);
	REFUSED(trespass_worker_read(NULL, 1, in, 4), EFAULT);
	REFUSED(trespass_worker_write(NULL, 1, in, 4), EFAULT);
	REFUSED(trespass_worker_writev(NULL, 1, NULL, 0), EFAULT);
	REFUSED(trespass_worker_send(NULL, 1, in, 4), EFAULT);
	REFUSED(trespass_worker_recv(NULL, 1, in, 4), EFAULT);
	REFUSED_NULL(trespass_worker_recv_buffer(NULL, 1), EFAULT);
	REFUSED(trespass_worker_send_buffer(NULL, 1, NULL, 1, NULL), EFAULT);
	REFUSED(trespass_worker_send_buffer(worker, 1, NULL, 1, NULL), EFAULT);
	REFUSED(trespass_worker_shutdown(NULL, 1, SHUT_WR), EFAULT);
	REFUSED(trespass_worker_set_cork(NULL, 1, 1), EFAULT);
	REFUSED(trespass_worker_set_interest(NULL, 1, 1), EFAULT);
	REFUSED_NULL(trespass_worker_transport(NULL, 1), EFAULT);
	REFUSED(trespass_worker_local_addr(NULL, 1, place, &length), EFAULT);
	REFUSED(trespass_worker_peer_addr(NULL, 1, place, &length), EFAULT);
	REFUSED(trespass_worker_close_key(NULL, 1), EFAULT);
	REFUSED(trespass_worker_set_tag(NULL, 1, 1), EFAULT);
	REFUSED_NULL(trespass_worker_buffer_new(NULL, 1), EFAULT);

	/* Nothing of this has ended a handle. */
	write_all(pair.client, "ok", 2);
	read_all(pair.server, in, 2);
	CHECK(trespass_worker_close(worker) == 0);
	close_pair(packets);
	close_pair(pair);
}

/* One type of handle in the place of another, and memory with the tag that a closed one leaves. */
void wrong_handles(void)
{
	struct place place = listen_here(NULL);
	union {
		char tag[256];
		size_t aligned;
		/* The letters of the tag, which is a number, in the order of these machines. */
	} closed = { .tag = "DAED" };

	REFUSED(trespass_close((trespass_connection *)(void *)place.listener), EBADF);
	REFUSED(trespass_fd((trespass_connection *)(void *)place.listener), EBADF);
	REFUSED(trespass_buffer_release((trespass_buffer *)(void *)place.listener), EBADF);
	/* No handle is there. */
	REFUSED(trespass_fd((trespass_connection *)(void *)(closed.tag + 1)), EBADF);
	REFUSED(trespass_close((trespass_connection *)(void *)&closed), EBADF);
	CHECK(strstr(trespass_error(), "is closed"));
	CHECK(trespass_listener_close(place.listener) == 0);
}
