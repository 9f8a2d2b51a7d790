/* JSON as Python's json.dump(…, indent=4) writes it, so that a config that
 * passes through keeps its numbers as they were spelled. */
#ifndef CONVERT_JSON_OUT_H
#define CONVERT_JSON_OUT_H

#include "base/buf.h"
#include "base/json.h"

/* Loads an object in which every number is a cJSON_Raw of the text that Python
 * would write for it; typed getters do not take those. Free with cJSON_Delete. */
enum tlm_status json_out_load(const char *path, size_t max, cJSON **out, struct tlm_error *e);

enum { JSON_OUT_NUMBER = 64 }; /* room for a number's text */

/* The text of a double in Python: the shortest that reads back the same. */
void json_out_double(double v, char out[JSON_OUT_NUMBER]);

/* Sorts the members of an object by name; of equal names the last stays. */
enum tlm_status json_out_sort(cJSON *object, struct tlm_error *e);

/* Adds a member, or replaces the one there is; takes v over, also on failure.
 * v may be NULL: out of memory. */
enum tlm_status json_out_set(cJSON *object, const char *name, cJSON *v, struct tlm_error *e);

/* Not closed by a newline, as Python leaves it. */
enum tlm_status json_out_write(struct buf *b, const cJSON *v, struct tlm_error *e);

#endif
