/* Typed getters over cJSON. */
#include "base/json.h"

#include <math.h>
#include <string.h>

#include "base/file.h"
#include "base/json_scan.h"
#include "base/mem.h"

/* cJSON takes more than JSON, loses count of what it takes, and does not say
 * why it fails; after the scan it can only be out of memory. */
enum tlm_status json_parse(const char *text, size_t len, const char *where, cJSON **out, struct tlm_error *e)
{
    size_t words;
    char *plain = NULL;
    *out = NULL;
    if (len >= 3 && !memcmp(text, "\xef\xbb\xbf", 3)) { /* byte order mark */
        text += 3;
        len -= 3;
    }
    enum tlm_status s = json_scan(text, len, where, &words, e);
    if (s != TLM_OK)
        return s;
    if (words) {
        plain = mem_alloc(len + 6 * words + 1);
        if (!plain)
            return err_nomem(e, len + 6 * words + 1);
        len = json_scan_replace(text, len, plain);
        text = plain;
    }
    *out = cJSON_ParseWithLength(text, len);
    mem_free(plain);
    if (!*out)
        return err_set(e, TLM_ENOMEM, "%s: out of memory for %zu bytes of JSON", where, len);
    return TLM_OK;
}

enum tlm_status json_load(const char *path, size_t max, cJSON **out, struct tlm_error *e)
{
    char *text;
    size_t len;
    *out = NULL;
    enum tlm_status s = file_read(path, max, &text, &len, e);
    if (s != TLM_OK)
        return s;
    s = json_parse(text, len, path, out, e);
    mem_free(text);
    return s;
}

enum tlm_status json_load_object(const char *path, size_t max, cJSON **out, struct tlm_error *e)
{
    enum tlm_status s = json_load(path, max, out, e);
    if (s != TLM_OK || cJSON_IsObject(*out))
        return s;
    s = err_set(e, TLM_EFORMAT, "%s: found %s, expected an object", path, json_type_name(*out));
    cJSON_Delete(*out);
    *out = NULL;
    return s;
}

const char *json_type_name(const cJSON *v)
{
    if (!v)
        return "nothing";
    if (cJSON_IsBool(v))
        return cJSON_IsTrue(v) ? "true" : "false";
    if (cJSON_IsNull(v))
        return "null";
    if (cJSON_IsNumber(v))
        return "a number";
    if (cJSON_IsString(v))
        return "a string";
    return cJSON_IsArray(v) ? "an array" : "an object";
}

const cJSON *json_get(const cJSON *obj, const char *key)
{
    const cJSON *v = obj;
    while (v && *key) {
        const char *dot = strchr(key, '.');
        size_t n = dot ? (size_t)(dot - key) : strlen(key);
        const cJSON *found = NULL; /* the last of equal keys, as in Python */
        for (const cJSON *child = cJSON_IsObject(v) ? v->child : NULL; child; child = child->next)
            if (child->string && strlen(child->string) == n && !memcmp(child->string, key, n))
                found = child;
        v = found;
        key += dot ? n + 1 : n;
    }
    return v && cJSON_IsNull(v) ? NULL : v;
}

static enum tlm_status bad(struct tlm_error *e, const char *key, const cJSON *v, const char *expected)
{
    return err_set(e, TLM_EFORMAT, "%s: found %s, expected %s", key, json_type_name(v), expected);
}

static enum tlm_status to_int(const cJSON *v, const char *key, int64_t min, int64_t max, int64_t *out,
                              struct tlm_error *e)
{
    if (!cJSON_IsNumber(v))
        return bad(e, key, v, "an integer");
    double d = v->valuedouble;
    if (!isfinite(d) || d != floor(d))
        return err_set(e, TLM_EFORMAT, "%s: found %.17g, expected an integer", key, d);
    if (fabs(d) > 9007199254740992.0) /* beyond this not every integer is exact */
        return err_set(e, TLM_EFORMAT, "%s: found %.17g, expected %lld to %lld", key, d, (long long)min,
                       (long long)max);
    if (d < (double)min || d > (double)max)
        return err_set(e, TLM_EFORMAT, "%s: found %.0f, expected %lld to %lld", key, d, (long long)min, (long long)max);
    *out = (int64_t)d;
    return TLM_OK;
}

enum tlm_status json_int(const cJSON *obj, const char *key, int64_t min, int64_t max, int64_t *out, struct tlm_error *e)
{
    const cJSON *v = json_get(obj, key);
    return v ? to_int(v, key, min, max, out, e) : TLM_OK;
}

enum tlm_status json_float(const cJSON *obj, const char *key, float *out, struct tlm_error *e)
{
    const cJSON *v = json_get(obj, key);
    if (!v)
        return TLM_OK;
    if (!cJSON_IsNumber(v))
        return bad(e, key, v, "a number");
    if (!isfinite((float)v->valuedouble))
        return err_set(e, TLM_EFORMAT, "%s: found %g, expected a finite float", key, v->valuedouble);
    *out = (float)v->valuedouble;
    return TLM_OK;
}

enum tlm_status json_bool(const cJSON *obj, const char *key, bool *out, struct tlm_error *e)
{
    const cJSON *v = json_get(obj, key);
    if (!v)
        return TLM_OK;
    if (!cJSON_IsBool(v))
        return bad(e, key, v, "true or false");
    *out = cJSON_IsTrue(v);
    return TLM_OK;
}

enum tlm_status json_str(const cJSON *obj, const char *key, const char **out, struct tlm_error *e)
{
    const cJSON *v = json_get(obj, key);
    if (!v)
        return TLM_OK;
    if (!cJSON_IsString(v))
        return bad(e, key, v, "a string");
    *out = v->valuestring;
    return TLM_OK;
}

enum tlm_status json_ints(const cJSON *obj, const char *key, int64_t *out, int max, int *n, struct tlm_error *e)
{
    const cJSON *v = json_get(obj, key);
    if (!v)
        return TLM_OK;
    *n = 0;
    const cJSON *item = cJSON_IsArray(v) ? v->child : v;
    while (item) {
        if (*n == max)
            return err_set(e, TLM_EFORMAT, "%s: more than %d values", key, max);
        enum tlm_status s = to_int(item, key, INT64_MIN / 2, INT64_MAX / 2, &out[*n], e);
        if (s != TLM_OK)
            return s;
        ++*n;
        item = item == v ? NULL : item->next;
    }
    return TLM_OK;
}
