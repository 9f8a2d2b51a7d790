/* Typed reading of small JSON documents (cJSON): configs, indexes, requests.
 * Getters leave *out untouched when the key is absent or null, so defaults are
 * set first; a wrong type is an error that names the file and the field. */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* Parses text; `where` names it in errors. Free with cJSON_Delete. */
enum tlm_status json_parse(const char *text, size_t len, const char *where, cJSON **out, struct tlm_error *e);
enum tlm_status json_load(const char *path, size_t max, cJSON **out, struct tlm_error *e);
/* The same for a file whose value must be an object. */
enum tlm_status json_load_object(const char *path, size_t max, cJSON **out, struct tlm_error *e);

/* The member, or NULL when absent or null. key may be a path "a.b". Keys are
 * matched exactly, case included. */
const cJSON *json_get(const cJSON *obj, const char *key);

enum tlm_status json_int(const cJSON *obj, const char *key, int64_t min, int64_t max, int64_t *out,
                         struct tlm_error *e);
enum tlm_status json_float(const cJSON *obj, const char *key, float *out, struct tlm_error *e);
enum tlm_status json_bool(const cJSON *obj, const char *key, bool *out, struct tlm_error *e);
/* Borrowed from obj. */
enum tlm_status json_str(const cJSON *obj, const char *key, const char **out, struct tlm_error *e);
/* An integer or an array of integers into out (room for max); *n is the count.
 * More than max is an error. */
enum tlm_status json_ints(const cJSON *obj, const char *key, int64_t *out, int max, int *n, struct tlm_error *e);
const char *json_type_name(const cJSON *v); /* "a string", "null" */

#endif
