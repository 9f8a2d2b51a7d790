/* Status codes and errors of libturbolm.
 *
 * Every function that can fail returns an enum tlm_status and takes a
 * struct tlm_error, which may be NULL. The error holds the first failure: a
 * later one does not overwrite it, so a caller may check once after several
 * calls. Zero-initialise it before first use. */
#ifndef TURBOLM_STATUS_H
#define TURBOLM_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TLM_API __attribute__((visibility("default")))
#else
#define TLM_API
#endif

enum tlm_status {
#define TLM_STATUS(name, exit_code, text) name,
#include "status.def"
#undef TLM_STATUS
};

enum { TLM_ERROR_MAX = 1024 }; /* bytes of a message, its NUL included */

struct tlm_error {
    enum tlm_status status;
    char message[TLM_ERROR_MAX]; /* one line, no newline; names file and field */
};

/* "not supported" for TLM_EUNSUPPORTED; never NULL. */
TLM_API const char *tlm_status_name(enum tlm_status status);

/* Exit status of a command that ends with this status: 0, 1, or 2 for usage. */
TLM_API int tlm_status_exit(enum tlm_status status);

/* Version of the library, "0.1.0". */
TLM_API const char *tlm_version(void);

/* One line: backends and instruction sets that are built in, those that this
 * processor has marked; "cpu: scalar avx2* avx512". */
TLM_API const char *tlm_build_info(void);

/* Fails when the environment variable TURBOLM_CPU names an instruction set that is not known or not there. Opening a
 * model to run it fails for the same reason. */
TLM_API enum tlm_status tlm_environment_check(struct tlm_error *e);

#ifdef __cplusplus
}
#endif
#endif
