/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * Finds libibverbs and librdmacm when they are first needed, and passes calls on to them.
 *
 * No code runs before main, so a program that never uses RDMA opens no library. The generated
 * functions.def lists the exports, their versions and first releases.
 */
#define _GNU_SOURCE

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include <rdma-mummy/rdma_verbs.h>
#include <rdma-mummy/rsocket.h>

#define DIRECTORY_VARIABLE "RDMA_MUMMY_LIB_DIR"
#define UNKNOWN "unknown (rdma-core is not loaded, or too old)"

typedef void (*function)(void);

enum need { OPTIONAL, REQUIRED };
enum which { VERBS, RDMACM, LIBRARIES };

/* The functions' numbers. */
enum {
#define VARIADIC(library, name, ...) NUMBER_##name,
#define PROCEDURE VARIADIC
#define FUNCTION VARIADIC
#include "functions.def"
#undef VARIADIC
	FUNCTIONS
};

static const struct symbol {
	enum which library;
	const char *name, *version, *since;
	enum need need;
} symbols[FUNCTIONS] = {
#define VARIADIC(library, name, version, since, need, ...) { library, #name, version, since, need },
#include "functions.def"
#undef VARIADIC
#undef PROCEDURE
#undef FUNCTION
};

static struct library {
	const char *name, *packages;
	/* A function and its version in the first release; no version if the object has none. */
	const char *anchor, *anchor_version;
	/* Set after `found` is complete, and never reset, because a library stays open. */
	atomic_bool ready;
} libraries[LIBRARIES] = {
	[VERBS] = { "libibverbs.so.1", "libibverbs1 and ibverbs-providers on Debian and Ubuntu, libibverbs on Fedora and RHEL",
		    "ibv_get_device_list", "IBVERBS_1.1", false },
	[RDMACM] = { "librdmacm.so.1", "librdmacm1 on Debian and Ubuntu, librdmacm on Fedora and RHEL",
		     "rdma_create_id", "RDMACM_1.0", false },
};

static function found[FUNCTIONS];
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;

/* The reason of the thread's latest call; empty if there is none. */
static _Thread_local char reason[1024];

static void append(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void append(const char *format, ...)
{
	size_t used = strlen(reason);
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(reason + used, sizeof(reason) - used, format, arguments);
	va_end(arguments);
}

static function plain(void *handle, const char *name)
{
	void *address = dlsym(handle, name);
	function result;

	/* ISO C allows no other conversion of an object's address to a function's. */
	memcpy(&result, &address, sizeof(result));
	return result;
}

/* In one version only, because an older function of that name may have another prototype. */
static function versioned(void *handle, const char *name, const char *version)
{
#ifdef __GLIBC__
	void *address = dlvsym(handle, name, version);
	function result;

	memcpy(&result, &address, sizeof(result));
	return result;
#else
	(void)version;
	return plain(handle, name);
#endif
}

static bool look_up(enum which which, void *handle, const char *path)
{
	const struct library *library = &libraries[which];
	bool has_versions = versioned(handle, library->anchor, library->anchor_version);
	const char *separator = "";

	for (int n = 0; n < FUNCTIONS; n++) {
		const struct symbol *symbol = &symbols[n];

		if (symbol->library != which)
			continue;
		found[n] = has_versions && *symbol->version ? versioned(handle, symbol->name, symbol->version)
							    : plain(handle, symbol->name);
		if (!found[n] && symbol->need == REQUIRED) {
			if (!*reason)
				append("%s is too old to be used as %s: it does not export ", path, library->name);
			append("%s%s", separator, symbol->name);
			separator = ", ";
		}
	}
	if (*reason) {
		append("; install a newer rdma-core");
		return false;
	}
	if (which == RDMACM) {
		/* Connections contain verbs objects, so both libraries must use the same libibverbs. */
		function theirs = plain(handle, "ibv_get_device_list");

		if (theirs && theirs != found[NUMBER_ibv_get_device_list]) {
			append("%s (%s) uses another libibverbs than this program: put the folder of both first in "
			       "LD_LIBRARY_PATH", path, library->name);
			return false;
		}
	}
	return true;
}

static bool open_library(enum which which)
{
	struct library *library = &libraries[which];
	const char *directory = secure_getenv(DIRECTORY_VARIABLE);
	char path[4096];
	void *handle;
	int length;

	if (directory && *directory)
		length = snprintf(path, sizeof(path), "%s/%s", directory, library->name);
	else
		length = snprintf(path, sizeof(path), "%s", library->name);
	if (length < 0 || (size_t)length >= sizeof(path)) {
		append("the folder in " DIRECTORY_VARIABLE " has too long a name: choose a shorter one");
		return false;
	}
	handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!handle) {
		append("cannot load %s (tried %s: %s): install rdma-core's package (%s), or name the library's folder "
		       "in " DIRECTORY_VARIABLE, library->name, path, dlerror(), library->packages);
		return false;
	}
	/* An unsuitable library stays open, because closing it would run its code for no benefit. */
	return look_up(which, handle, path);
}

/* Whether a library can be used. Only success is stored, so that a library installed later is found. */
static bool ready(enum which which)
{
	struct library *library = &libraries[which];
	bool done;

	reason[0] = '\0';
	if (atomic_load_explicit(&library->ready, memory_order_acquire))
		return true;
	/* libibverbs first, because librdmacm is checked against it. */
	if (which == RDMACM && !ready(VERBS))
		return false;
	pthread_mutex_lock(&loading);
	done = atomic_load_explicit(&library->ready, memory_order_relaxed) || open_library(which);
	atomic_store_explicit(&library->ready, done, memory_order_release);
	pthread_mutex_unlock(&loading);
	return done;
}

/* The function to call, or NULL with errno and the reason set. */
static function find(int number)
{
	const struct symbol *symbol = &symbols[number];

	if (!ready(symbol->library)) {
		errno = ENOSYS;
		return NULL;
	}
	if (!found[number]) {
		append("%s does not export `%s`", libraries[symbol->library].name, symbol->name);
		if (*symbol->since)
			append(" (added in %s, rdma-core %s)", symbol->version, symbol->since);
		append("; install a newer rdma-core");
		errno = EOPNOTSUPP;
	}
	return found[number];
}

int rdma_mummy_load(void)
{
	if (ready(VERBS) && ready(RDMACM))
		return 0;
	errno = ENOSYS;
	return ENOSYS;
}

const char *rdma_mummy_error(void)
{
	return *reason ? reason : NULL;
}

int rdma_mummy_unsupported(void)
{
	reason[0] = '\0';
	errno = EOPNOTSUPP;
	return EOPNOTSUPP;
}

/* The wrappers: every function by its usual name, to which the headers give a prefix. */
#define FUNCTION(library, name, version, since, need, result, identifier, parameters, arguments, failure) \
	result identifier parameters                                                                     \
	{                                                                                                \
		result (*call) parameters = (result(*) parameters)find(NUMBER_##name);                   \
		return call ? call arguments : failure;                                                  \
	}
#define PROCEDURE(library, name, version, since, need, identifier, parameters, arguments) \
	void identifier parameters                                                       \
	{                                                                                \
		void(*call) parameters = (void(*) parameters)find(NUMBER_##name);        \
		if (call)                                                                \
			call arguments;                                                  \
	}
#define VARIADIC(...)
#include "functions.def"

/* Every socket command has at most one argument, which fits a register. */
int rfcntl(int socket, int command, ...)
{
	int (*call)(int, int, ...) = (int (*)(int, int, ...))find(NUMBER_rfcntl);
	va_list arguments;
	long argument;

	va_start(arguments, command);
	argument = va_arg(arguments, long);
	va_end(arguments);
	return call ? call(socket, command, argument) : -1;
}
