/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Echoes the bytes of one client after another: `echo_server [HOST:PORT]`. */
#include <stdio.h>
#include <stdlib.h>

#include <trespass.h>

static void die(const char *what)
{
	fprintf(stderr, "echo_server: %s: %s\n", what, trespass_error());
	exit(1);
}

/* Until the client shuts down its direction, or fails. */
static void echo(trespass_connection *client)
{
	char bytes[65536];
	ssize_t got;

	while ((got = trespass_read(client, bytes, sizeof(bytes))) > 0)
		for (ssize_t done = 0; done < got;) {
			ssize_t taken = trespass_write(client, bytes + done, (size_t)(got - done));
			if (taken < 0) {
				fprintf(stderr, "echo_server: cannot write: %s\n", trespass_error());
				return;
			}
			done += taken;
		}
	if (got < 0)
		fprintf(stderr, "echo_server: cannot read: %s\n", trespass_error());
}

int main(int argc, char **argv)
{
	trespass_listener *listener = trespass_listen(argc > 1 ? argv[1] : "0.0.0.0:7000", NULL);

	if (!listener)
		die("cannot listen");
	printf("listening on port %d\n", trespass_listener_port(listener));
	fflush(stdout);
	for (;;) {
		trespass_connection *client = trespass_accept(listener, TRESPASS_STREAM);
		if (!client)
			die("cannot accept");
		printf("a client over %s\n", trespass_transport(client));
		fflush(stdout);
		echo(client);
		/* Does not wait: what is written is still sent. */
		trespass_close(client);
	}
}
