/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A program with a data race, which ThreadSanitizer must find: a thread writes to the buffer that a
 * call of the library fills. */
#include <pthread.h>
#include <stdio.h>

#include <trespass.h>

static char bytes[64];

static void *scribble(void *unused)
{
	bytes[0] = '!';
	return unused;
}

int main(void)
{
	trespass_listener *listener = trespass_listen("127.0.0.1:0", NULL);
	trespass_connection *client, *server;
	char address[32];
	pthread_t other;

	snprintf(address, sizeof(address), "127.0.0.1:%d", trespass_listener_port(listener));
	client = trespass_connect(address, TRESPASS_STREAM, NULL);
	server = trespass_accept(listener, TRESPASS_STREAM);
	if (!client || !server || trespass_write(server, "hello", 5) != 5)
		return 1;
	/* Nothing orders the two writes, in whichever order they happen. */
	if (pthread_create(&other, NULL, scribble, NULL))
		return 1;
	if (trespass_read(client, bytes, sizeof(bytes)) <= 0 || pthread_join(other, NULL))
		return 1;
	return trespass_close(client) || trespass_close(server) || trespass_listener_close(listener);
}
