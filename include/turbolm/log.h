/* Messages of the library. It never prints by itself: without a handler
 * warnings are dropped. The handler may be called from any thread. */
#ifndef TURBOLM_LOG_H
#define TURBOLM_LOG_H

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum tlm_log_level { TLM_LOG_DEBUG, TLM_LOG_INFO, TLM_LOG_WARNING, TLM_LOG_ERROR };

typedef void tlm_log_handler(enum tlm_log_level level, const char *message, void *user);

/* handler NULL turns messages off. Not to be called while other calls run. */
TLM_API void tlm_log_set(tlm_log_handler *handler, void *user);

#ifdef __cplusplus
}
#endif
#endif
