/* What the programs of elfutils need of <argp.h>, which musl does not have. libelf, the only part of
 * elfutils in weir, calls none of it. */
#ifndef WEIR_ARGP_H
#define WEIR_ARGP_H

#include <stdio.h>

#define OPTION_ARG_OPTIONAL 1
#define ARGP_ERR_UNKNOWN 7
#define ARGP_HELP_SEE 8

typedef int error_t;

/* Of its members, the version of a program is printed with the name only. */
struct argp_state {
	char *name;
};

struct argp_option {
	const char *name;
	int key;
	const char *arg;
	int flags;
	const char *doc;
	int group;
};

struct argp {
	const struct argp_option *options;
	error_t (*parser)(int key, char *arg, struct argp_state *state);
	const char *args_doc;
	const char *doc;
	const void *children;
	char *(*help_filter)(int key, const char *text, void *input);
	const char *domain;
};

void argp_help(const struct argp *argp, FILE *stream, unsigned flags, char *name);

#endif
